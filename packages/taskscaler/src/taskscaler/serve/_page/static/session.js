// Who looks: trades the secret of a link for a cookie, which no script sees, and for what permits changes, which this tab
// alone keeps: the cookie goes to all ports of the host, and what a tab keeps to none but its own.

const HEADER = "X-Taskscaler-Csrf";
const KEPT = "taskscaler-csrf";
const TRIES = 4;
const PAUSE = 500; // milliseconds

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Ask the daemon; what it refuses is an error with its sentence. */
export async function ask(method, path, body, headers = {}) {
  const options = { method, headers: { ...headers }, cache: "no-store", credentials: "same-origin" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, options);
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, data.error?.message ?? `the daemon answers ${answer.status}`);
  return data;
}

/** Ask again if nobody answers, as when the network changes; what is refused stays so. */
async function insist(...asked) {
  for (let left = TRIES; ; left -= 1) {
    try {
      return await ask(...asked);
    } catch (error) {
      if (error instanceof Refused || left === 1) throw error;
      await new Promise((resolve) => setTimeout(resolve, PAUSE));
    }
  }
}

export class Session {
  constructor() {
    this.entered = false; // whether a link has let us in
    this.changes = false;
    this.elsewhere = false; // whether another tab may change something
    this.csrf = sessionStorage.getItem(KEPT) ?? "";
  }

  /** Trade the link that this page was opened with, if it was; nobody finds it in the browser's history. */
  async enter() {
    const link = /^#link=([\w-]+)$/.exec(location.hash)?.[1];
    if (link) {
      history.replaceState(null, "", location.pathname);
      this.keep(await insist("POST", "session", { link }));
    }
    return Boolean(link);
  }

  async look() {
    const { entered, changes, here } = await insist("GET", "session", undefined, { [HEADER]: this.csrf });
    this.entered = entered;
    this.changes = here;
    this.elsewhere = changes && !here;
  }

  /** Keep what is told once; it outlives a reload of this tab. */
  keep({ changes, csrf }) {
    this.entered = true;
    this.changes = changes;
    this.elsewhere = false;
    this.csrf = csrf ?? "";
    sessionStorage.setItem(KEPT, this.csrf);
  }

  /** Have the pass end, for all tabs of this browser; the page begins again, as for a stranger. */
  async leave() {
    await ask("DELETE", "session");
    sessionStorage.removeItem(KEPT);
    location.reload();
  }

  async change(verb, body) {
    return ask("POST", verb, body, { [HEADER]: this.csrf });
  }
}
