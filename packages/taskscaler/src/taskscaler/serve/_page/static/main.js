// The status page: asks for what may be seen, and shows it as it changes.

import { Details, offerDraining, offerLeaving } from "./dialogs.js";
import { byId, clock, say, span, tick } from "./dom.js";
import { Fleet } from "./fleet.js";
import { Grid } from "./grid.js";
import { showDecisions, showHead, showQueue } from "./lists.js";
import { Session } from "./session.js";
import { drawTimeline } from "./timeline.js";

const RETRY = 5000; // milliseconds until a daemon that refused is asked again

const session = new Session();
const fleet = new Fleet(shown, stateChanged);
const details = new Details(session, fleet);
const grid = new Grid((place) => details.openInstance(place));

function shown(change) {
  const { known } = fleet;
  const openJob = (key, name) => details.openJob(key, name);
  const isFirst = byId("fleet").hidden;
  if (isFirst) {
    byId("fleet").hidden = false;
    byId("enter").hidden = true;
  }
  if (change === null || change.head) showHead(known.head);
  if (change === null || change.queue || change.head) showQueue(known.queue, known.head.pools, openJob);
  if (change === null || change.instances || change.head) grid.show(known, change === null ? null : (change.instances ?? {}));
  if (change === null || change.decisions) showDecisions(known.decisions);
  details.update();
  tick(fleet.now);
  // What is below what a window has room for comes once the rest can be seen.
  afterFrame(() => {
    if (isFirst) performance.mark("fleet-shown", { detail: { tiles: grid.made } });
    complete();
  });
}

function afterFrame(then) {
  requestAnimationFrame(() => setTimeout(then));
}

/** Make the rest of the tiles, some in each frame, so that clicks and keys are heard in between; then the timeline. */
function complete() {
  if (grid.goOn()) {
    afterFrame(complete);
    return;
  }
  performance.mark("fleet-complete");
  draw();
}

function draw() {
  if (fleet.known && !document.hidden) drawTimeline(fleet.known, fleet.over, Math.floor(fleet.now));
}

let state = "connecting";
let lostAt = 0;
let why = "";

function stateChanged(to, because) {
  if (to === "refused") {
    askAgain();
    return;
  }
  if (to === "lost" && state !== "lost") lostAt = fleet.heardAt || Date.now();
  state = to;
  why = because;
  document.body.dataset.view = to;
  describe();
}

function describe() {
  if (state === "live") say(byId("connection"), "live");
  if (state !== "lost") return;
  const since = fleet.known ? ` What you see is as it was at ${clock(lostAt / 1000)}, ${span((Date.now() - lostAt) / 1000)} ago.` : "";
  say(byId("connection"), `${why || "connection lost; trying again"}.${since}`);
}

/** Find out why the stream was refused, and begin again unless a link is needed. */
async function askAgain() {
  try {
    await session.look();
    stateChanged("lost", "");
  } catch (error) {
    if (error.status === 401) {
      needLink("");
      return;
    }
    stateChanged("lost", "");
  }
  setTimeout(() => fleet.follow(), RETRY);
}

function needLink(because) {
  document.body.dataset.view = "enter";
  say(byId("connection"), "not signed in");
  byId("fleet").hidden = true;
  byId("enter").hidden = false;
  byId("drain").hidden = byId("elsewhere").hidden = byId("leave").hidden = true;
  say(byId("enter-why"), because);
}

async function begin() {
  let entered = false;
  try {
    entered = await session.enter();
  } catch (error) {
    const known = await session.look().then(() => true, () => false); // an earlier link may have let us in
    if (!known) {
      needLink(`${error.message.charAt(0).toUpperCase()}${error.message.slice(1)}.`);
      return;
    }
  }
  fleet.follow();
  if (!entered) await session.look().catch(() => {}); // if we may not, the stream says so as well
  byId("drain").hidden = !session.changes;
  byId("elsewhere").hidden = !session.elsewhere;
  byId("leave").hidden = !session.entered;
  details.update();
}

offerDraining(session);
offerLeaving(session, () => stateChanged("lost", "you are still signed in, as the daemon does not answer; trying again"));
begin();
setInterval(() => {
  tick(fleet.now);
  describe();
  draw();
}, 1000);
window.addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
document.addEventListener("visibilitychange", draw);
