// What is not the grid: the sentence on top, who waits and why, pools and what they cost, decisions.

import { age, byId, clock, counted, digits, make, say } from "./dom.js";

const SLOTS = { acquired: "slots in use", idle: "slots free", reserved: "slots reserved", "not ready yet": "slots not ready yet", unavailable: "slots unavailable" };

export function showHead(head) {
  say(byId("name"), head.name + (head.state === "serving" ? "" : ` · ${head.state}`));
  document.title = `${head.name} · taskscaler`;
  const answer = head.answer;
  say(byId("answer"), answer.charAt(0).toUpperCase() + answer.slice(1) + ".");
  byId("next").hidden = !head.next.length;
  byId("next").replaceChildren(...head.next.map((sentence) => make("li", {}, `Next, ${sentence}.`)));
  const slots = head.slots.map(([words, count]) => {
    const name = make("dt", {}, SLOTS[words] ?? words);
    return make("div", {}, name, make("dd", {}, digits(count)));
  });
  byId("slots").replaceChildren(...slots);
  byId("slots").hidden = !slots.length;
  showPools(head);
}

function showPools(head) {
  const pools = head.pools.map((pool) => {
    const ceiling = pool.ceiling === null ? "" : `, at most ${digits(pool.ceiling)}`;
    const notes = pool.notes.map((note) => make("li", {}, note));
    const title = make("h3", {}, make("bdi", {}, pool.name));
    const cost = make("p", { className: "cost" }, `Cost so far: ${pool.cost || "nothing is known"}`);
    return make("div", { className: "pool" }, title, make("p", {}, pool.counts + ceiling), ...(notes.length ? [make("ul", {}, ...notes)] : []), cost);
  });
  if (head.ceiling !== null) pools.push(make("p", {}, `At most ${counted(head.ceiling, "instance")} in all pools.`));
  if (head.cost) pools.push(make("p", { id: "cost-in-all" }, `Cost so far in all: ${head.cost}`));
  byId("pool-list").replaceChildren(...pools);
}

/** Show who waits, below what they wait for: often, many wait for the same. */
export function showQueue(queue, pools, opened) {
  byId("now").toggleAttribute("data-waits", queue.total > 0);
  say(byId("queue-count"), queue.total ? digits(queue.total) : "");
  const groups = queue.reasons.map((reason, number) => {
    const jobs = queue.jobs.filter((job) => job[4] === number);
    const who = jobs.length === 1 ? "Why it waits" : "Why they wait";
    const why = make("p", { className: "reason" }, make("b", {}, who), reason.charAt(0).toUpperCase() + reason.slice(1) + ".");
    return make("div", {}, why, make("ol", { className: "waiters" }, ...jobs.map((job) => waiter(job, opened))));
  });
  const notes = queue.total ? pools.flatMap((pool) => notesBeyond(queue.reasons, pool)) : [];
  if (notes.length) groups.push(make("ul", { className: "faint notes" }, ...notes));
  if (!groups.length) groups.push(make("p", { className: "faint" }, "No job waits for a slot."));
  const focused = document.activeElement?.dataset.job;
  byId("reasons").replaceChildren(...groups);
  if (focused) byId("reasons").querySelector(`[data-job="${CSS.escape(focused)}"]`)?.focus();
  const more = queue.total - queue.jobs.length;
  byId("queue-more").hidden = more <= 0;
  say(byId("queue-more"), more > 0 ? `and ${digits(more)} more behind them` : "");
}

/** What stands between a pool and more capacity, unless the reasons say it already. */
function notesBeyond(reasons, pool) {
  const notes = pool.notes.filter((note) => !reasons.some((reason) => reason.includes(note)));
  return notes.map((note) => make("li", {}, "Pool ", make("bdi", {}, pool.name), `: ${note}`));
}

function waiter([name, since, place, reserves, , key], opened) {
  const button = make("button", { type: "button", className: "link", "data-job": key ?? name }, make("bdi", {}, name));
  button.addEventListener("click", () => opened(key ?? name, name));
  const where = make("span", { className: "place" }, place === null ? "" : `#${place}`);
  return make("li", {}, where, button, ...(reserves ? [make("span", { className: "faint" }, "a reservation")] : []), age(since, "waits"));
}

export function showDecisions(decisions) {
  const items = decisions.map(([at, text]) => make("li", {}, make("time", {}, clock(at)), make("span", {}, text)));
  byId("decision-list").replaceChildren(...(items.length ? items : [make("li", { className: "faint" }, "Nothing was decided yet.")]));
}
