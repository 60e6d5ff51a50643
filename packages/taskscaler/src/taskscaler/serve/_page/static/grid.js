// The grid of instances and their slots: cards with all there is to say while they are few, tiles when they are many.

import { age, byId, counted, digits, make, say } from "./dom.js";

const MOST_CARDS = 60;
const SLOTS_ON_CARD = 4;
const SLOTS_ON_TILE = 8;
const PER_TURN = 200; // tiles that are made in each frame once the window is full
const TILE = 45 * 31; // pixels of a tile and the gap around it, at least

const GLYPHS = { busy: "◌", bad: "✕", dim: "–" };

const held = (instance) => instance.slots.filter((slot) => slot !== null).length;

function inWords(instance) {
  const slots = instance.slots.length ? `, ${held(instance)} of ${counted(instance.slots.length, "slot")} with a job` : "";
  return `${instance.id}, ${instance.words}${slots}${instance.notes ? `, ${instance.notes}` : ""}`;
}

function glyphs(instance) {
  const slots = instance.slots.slice(0, SLOTS_ON_TILE).map((slot) => (slot === null ? "□" : "■"));
  const more = instance.slots.length > SLOTS_ON_TILE ? "…" : "";
  return (GLYPHS[instance.mood] ?? "") + slots.join("") + more || "□";
}

const takesWork = (instance) => instance.mood === "good" || instance.mood === "";

function slotLine(slot, instance) {
  if (slot === null) {
    const word = takesWork(instance) ? "free" : "empty"; // nobody gets a slot where no new work goes
    return make("span", { className: "slot dim" }, make("span", { "aria-hidden": "true" }, "□"), word);
  }
  const [name, since] = slot;
  const mark = make("span", { className: "good", "aria-hidden": "true" }, "■");
  return make("span", { className: "slot" }, mark, make("bdi", { title: name }, name), ...(since === null ? [] : [age(since, "runs")]));
}

function fillCard(button, instance) {
  const glyph = GLYPHS[instance.mood];
  const words = make("span", { className: `words ${instance.mood}` }, `${glyph ? `${glyph} ` : ""}${instance.words}`);
  const top = make("span", { className: "top" }, make("bdi", { className: "id" }, instance.id), words);
  const lines = instance.slots.slice(0, SLOTS_ON_CARD).map((slot) => slotLine(slot, instance));
  if (instance.slots.length > SLOTS_ON_CARD) {
    const more = instance.slots.slice(SLOTS_ON_CARD);
    const busy = more.filter((slot) => slot !== null).length;
    lines.push(make("span", { className: "slot dim" }, `and ${more.length} more, ${busy} with a job`));
  }
  if (!instance.slots.length) lines.push(make("span", { className: "slot dim" }, age(instance.since, "for")));
  const notes = instance.notes ? [make("span", { className: `notes ${instance.mood}` }, instance.notes)] : [];
  button.replaceChildren(top, ...lines, ...notes);
}

export class Grid {
  constructor(opened) {
    this.opened = opened;
    this.buttons = new Map();
    this.lists = new Map();
    this.compact = false;
    this.template = make("li", {}, make("button", { type: "button", tabIndex: -1 }));
    this.pending = []; // places whose buttons are yet to be made, in order
    this.known = null;
    this.current = null; // the place of the button that the Tab key reaches
    byId("grid").addEventListener("keydown", (event) => this.move(event));
    byId("grid").addEventListener("click", (event) => this.click(event));
    byId("grid").addEventListener("pointerover", (event) => this.name(event.target.closest(".compact button")));
    byId("grid").addEventListener("focusin", (event) => this.reach(event.target.closest("button")?.dataset.place));
  }

  /** How many instances have their button. */
  get made() {
    return this.buttons.size;
  }

  show(known, changed) {
    this.known = known;
    const total = known.head.instances;
    const compact = known.instances.size > MOST_CARDS;
    say(byId("instances-count"), total ? digits(total) : "");
    const hidden = total - known.instances.size;
    byId("instances-more").hidden = hidden <= 0;
    say(byId("instances-more"), hidden > 0 ? `and ${counted(hidden, "instance")} more, which are not shown` : "");
    if (changed === null || compact !== this.compact) this.rebuild(known, compact);
    else {
      this.build(Infinity);
      for (const place of Object.keys(changed)) this.change(place, known.instances.get(place));
    }
    this.describeEmpty(known);
  }

  describeEmpty(known) {
    const empty = byId("grid").querySelector(".empty");
    if (known.instances.size) empty?.remove();
    else if (!empty) byId("grid").append(make("p", { className: "empty faint" }, "There are no instances."));
  }

  rebuild(known, compact) {
    const focused = document.activeElement?.dataset.place;
    const isFirst = this.buttons.size === 0;
    this.compact = compact;
    this.buttons.clear();
    this.lists.clear();
    byId("grid").replaceChildren();
    this.pending = [...known.instances.keys()];
    // Once there is something to see, all is there at once: else, what was seen or focused would go and come again.
    if (isFirst) this.fillWindow();
    else this.build(Infinity);
    if (!this.buttons.has(this.current)) this.reach(this.buttons.keys().next().value);
    else this.reach(this.current);
    if (focused) this.buttons.get(focused)?.focus();
  }

  /** Make the buttons of so many of those that are pending. */
  build(most) {
    const items = new Map();
    for (const place of this.pending.splice(0, most)) {
      const instance = this.known.instances.get(place);
      if (instance === undefined) continue; // it has gone meanwhile
      if (!items.has(instance.pool)) items.set(instance.pool, []);
      items.get(instance.pool).push(this.item(place, instance));
    }
    for (const [pool, each] of items) this.list(pool).append(...each);
    this.titles();
  }

  /** Make as many as a window has room for, and few others: somebody waits, and to measure takes longer than to make. */
  fillWindow() {
    const share = matchMedia("(min-width: 64rem)").matches ? 0.6 : 1; // of the width, as page.css has it
    this.build(Math.ceil((innerWidth * innerHeight * share) / TILE));
  }

  /** Make some more of those that are pending; returns whether there are others. */
  goOn() {
    this.build(PER_TURN);
    return this.pending.length > 0;
  }

  /** The list of a pool, which is made when it is first needed. */
  list(pool) {
    let list = this.lists.get(pool);
    if (!list) {
      list = make("ul", { className: this.compact ? "tiles compact" : "tiles", role: "list" });
      list.setAttribute("aria-label", `Instances of pool ${pool}`);
      list.setAttribute("aria-describedby", "grid-help");
      const title = make("h3", {}, "Pool ", make("bdi", {}, pool));
      this.lists.set(pool, list);
      byId("grid").append(title, list);
    }
    return list;
  }

  /** Pools are named where there are several. */
  titles() {
    for (const title of byId("grid").querySelectorAll("h3")) title.hidden = this.lists.size < 2;
  }

  item(place, instance) {
    const item = this.template.cloneNode(true); // which a thousand of take half the time to make
    const button = item.firstChild;
    button.dataset.place = place;
    this.buttons.set(place, button);
    this.fill(button, instance);
    return item;
  }

  fill(button, instance) {
    button.dataset.mood = instance.mood;
    button.setAttribute("aria-label", inWords(instance));
    if (this.compact) {
      say(button, glyphs(instance));
    } else {
      fillCard(button, instance);
    }
  }

  change(place, instance) {
    const button = this.buttons.get(place);
    if (instance === undefined) {
      if (button) this.remove(place, button);
    } else if (button) {
      this.fill(button, instance);
    } else {
      this.list(instance.pool).append(this.item(place, instance));
      this.titles();
      if (this.current === null) this.reach(place);
    }
  }

  remove(place, button) {
    const wasFocused = document.activeElement === button;
    const next = this.neighbour(place, 1) ?? this.neighbour(place, -1);
    this.buttons.delete(place);
    button.parentElement.remove();
    if (this.current === place) this.reach(next);
    if (wasFocused) this.buttons.get(next)?.focus();
  }

  neighbour(place, step) {
    const places = [...this.buttons.keys()];
    return places[places.indexOf(place) + step];
  }

  /** Have the Tab key reach this one, and no other. */
  reach(place) {
    if (place === undefined && this.buttons.size) return;
    const before = this.buttons.get(this.current);
    if (before) before.tabIndex = -1;
    this.current = place ?? null;
    const button = this.buttons.get(this.current);
    if (button) button.tabIndex = 0;
  }

  /** Say beside the pointer what a tile stands for. */
  name(button) {
    if (button) button.title = button.getAttribute("aria-label");
  }

  click(event) {
    const button = event.target.closest("button");
    if (button) this.opened(button.dataset.place);
  }

  move(event) {
    const place = event.target.closest("button")?.dataset.place;
    if (!place || event.ctrlKey || event.altKey || event.metaKey) return;
    this.build(Infinity);
    const places = [...this.buttons.keys()];
    const at = places.indexOf(place);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: places.length - 1 }[event.key] ?? this.vertical(event.key, at, places);
    if (to === undefined) return;
    event.preventDefault();
    this.buttons.get(places[Math.max(0, Math.min(places.length - 1, to))])?.focus();
  }

  /** The one above or below: as many on as stand in a row. */
  vertical(key, at, places) {
    if (key !== "ArrowDown" && key !== "ArrowUp") return undefined;
    const list = this.buttons.get(places[at]).closest("ul");
    const columns = getComputedStyle(list).gridTemplateColumns.split(" ").length;
    return key === "ArrowDown" ? at + columns : at - columns;
  }
}
