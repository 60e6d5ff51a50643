// An instance or a job in detail, and what may be done to it.

import { byId, make, say } from "./dom.js";
import { ask } from "./session.js";

const CONSEQUENCES = {
  cordon: "Cordon: it gets no new work; what runs there goes on.",
  uncordon: "Uncordon: it gets work again.",
  retain: "Retain: it is not deleted, whatever happens, and costs money as long.",
  unretain: "Unretain: it may be deleted again.",
};

const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);

export class Details {
  constructor(session, fleet) {
    this.session = session;
    this.fleet = fleet;
    this.place = null;
    this.dialog = byId("details");
    byId("details-close").addEventListener("click", () => this.dialog.close());
    for (const id of ["cordon", "retain"]) byId(id).addEventListener("click", () => this.hold(byId(id).dataset.verb));
    byId("hold").addEventListener("submit", (event) => event.preventDefault());
    this.dialog.addEventListener("close", () => { this.place = null; });
  }

  openInstance(place) {
    const instance = this.fleet.known.instances.get(place);
    if (!instance) return;
    this.place = place;
    byId("why").value = "";
    this.open(`Instance ${instance.id}`, { instance: place });
    this.update();
  }

  openJob(key, name) {
    this.place = null;
    byId("hold").hidden = true;
    this.open(`Job ${name}`, { key });
  }

  open(title, asked) {
    say(byId("details-title"), title);
    say(byId("details-result"), "");
    byId("details-body").replaceChildren(make("p", { className: "faint" }, "asking the daemon …"));
    if (!this.dialog.open) this.dialog.showModal();
    this.explain(asked);
  }

  async explain(asked) {
    let lines;
    try {
      const said = await ask("GET", `explain?${new URLSearchParams(asked)}`);
      const details = [...said.details, ...said.next.map((each) => `next, ${each.sentence}`)];
      lines = [make("p", {}, said.answer), make("ul", {}, ...details.map((each) => make("li", {}, each)))];
    } catch (error) {
      lines = [make("p", {}, error.message)];
    }
    byId("details-body").replaceChildren(...lines);
  }

  /** Offer what may be done to the instance as it is now. */
  update() {
    const instance = this.fleet.known?.instances.get(this.place);
    byId("hold").hidden = !(this.session.changes && instance);
    if (!instance) return;
    const verbs = [instance.cordoned ? "uncordon" : "cordon", instance.retained ? "unretain" : "retain"];
    [byId("cordon"), byId("retain")].forEach((button, number) => {
      button.dataset.verb = verbs[number];
      say(button, capital(verbs[number]));
    });
    say(byId("hold-words"), verbs.map((verb) => CONSEQUENCES[verb]).join(" "));
  }

  async hold(verb) {
    try {
      await this.session.change(verb, { instance: this.place, why: byId("why").value });
      say(byId("details-result"), `Done: ${verb}.`);
      this.explain({ instance: this.place });
    } catch (error) {
      say(byId("details-result"), capital(error.message));
    }
  }
}

/** Let whoever came by a link sign out. */
export function offerLeaving(session, failed) {
  byId("leave").addEventListener("click", () => session.leave().catch(failed));
}

/** Ask before the whole fleet is drained. */
export function offerDraining(session) {
  const dialog = byId("drain-dialog");
  byId("drain").addEventListener("click", () => {
    say(byId("drain-result"), "");
    dialog.showModal();
  });
  byId("drain-no").addEventListener("click", () => dialog.close());
  byId("drain-yes").addEventListener("click", async () => {
    try {
      await session.change("drain", {});
      dialog.close();
    } catch (error) {
      say(byId("drain-result"), capital(error.message));
    }
  });
}
