// What the daemon says, from the moment on at which the page is asked for: this module is the first to run, and what is
// said before the rest of the page is there to hear it is kept.

const EVENTS = ["whole", "change", "beat", "full", "error"];

export class Stream {
  constructor() {
    this.kept = [];
    this.heard = null;
    this.source = new EventSource("stream");
    for (const name of EVENTS) {
      this.source.addEventListener(name, (event) => {
        if (this.heard) this.heard(event);
        else this.kept.push(event);
      });
    }
  }

  /** Whether it was refused, and will not try again. */
  get isRefused() {
    return this.source.readyState === EventSource.CLOSED;
  }

  /** Have all events heard, those that were kept at once. */
  hear(heard) {
    this.heard = heard;
    for (const event of this.kept.splice(0)) heard(event);
  }

  close() {
    this.heard = () => {}; // an event may be on its way yet
    this.source.close();
  }
}

let early = document.hidden || location.hash.startsWith("#link=") ? null : new Stream(); // by a link, one is let in first

/** Take the stream that was opened with the page, once, or open one; a tab that nobody sees has none. */
export function openStream() {
  const stream = early;
  early = null;
  if (!document.hidden) return stream ?? new Stream();
  stream?.close();
  return null;
}
