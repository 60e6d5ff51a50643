// What is known of the fleet: a whole view first, then what changes of it, from server-sent events.

import { openStream } from "./stream.js";

const OVER_KEPT = 1500;
const SILENCE = 25_000; // milliseconds; the daemon says something every 10 s

export class Fleet {
  /** `shown(what)` is called after each change: with null for all, or with the parts of a change. */
  constructor(shown, stateChanged) {
    this.shown = shown;
    this.stateChanged = stateChanged;
    this.known = null;
    this.over = [];
    this.ahead = 0; // seconds by which the daemon's clock is ahead of ours
    this.heardAt = 0;
    this.stream = null;
    this.silence = null;
    this.following = false;
    document.addEventListener("visibilitychange", () => this.attend());
  }

  /** Let go of the stream while nobody sees it: a browser has six connections to a daemon, for all its tabs. */
  attend() {
    if (!this.following) return;
    if (!document.hidden) this.follow();
    else {
      clearTimeout(this.silence);
      this.stream?.close();
      this.stream = null;
    }
  }

  /** Seconds since the epoch, on the daemon's clock. */
  get now() {
    return Date.now() / 1000 + this.ahead;
  }

  follow() {
    this.following = true;
    this.stream?.close();
    this.stream = openStream();
    this.stream?.hear((event) => this.hear(event));
  }

  hear(event) {
    if (event.type === "error") {
      this.lose();
      return;
    }
    const data = JSON.parse(event.data);
    if (event.type === "full") this.stateChanged("lost", data.why);
    else this.heard(data);
    if (event.type === "whole") this.begin(data);
    if (event.type === "change") this.take(data);
  }

  /** Begin again: an event source gives up for good when it is refused, and does not see a connection that is silent. */
  lose() {
    clearTimeout(this.silence);
    this.stateChanged(this.stream.isRefused ? "refused" : "lost", "");
  }

  heard(data) {
    this.ahead = data.at - Date.now() / 1000;
    this.heardAt = Date.now();
    this.stateChanged("live", "");
    clearTimeout(this.silence);
    this.silence = setTimeout(() => {
      this.stateChanged("lost", "");
      this.follow();
    }, SILENCE);
  }

  begin(data) {
    this.over = data.over;
    this.known = { ...data, instances: new Map(Object.entries(data.instances)) };
    this.shown(null);
  }

  take(data) {
    for (const [place, instance] of Object.entries(data.instances ?? {})) {
      if (instance === null) this.known.instances.delete(place);
      else this.known.instances.set(place, instance);
    }
    for (const part of ["head", "queue", "decisions"]) {
      if (part in data) this.known[part] = data[part];
    }
    this.over = [...this.over, ...data.over].slice(-OVER_KEPT);
    this.shown(data);
  }
}
