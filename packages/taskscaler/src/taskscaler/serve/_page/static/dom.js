// Makes and fills elements. What a job, a cloud or an operator has named goes in as text, never as markup.

export const byId = (id) => document.getElementById(id);

/** Make an element: properties are set, except those of data and ARIA, which are attributes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("data-") || name.startsWith("aria-") || name === "role") {
      element.setAttribute(name, value);
    } else {
      element[name] = value;
    }
  }
  element.append(...children);
  return element;
}

/** Set a text, if it is another one: what stays the same is not laid out again, nor read out. */
export function say(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

/** Write how long something takes, as the commands do. */
export function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${whole % 60}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${Math.floor((whole % 3600) / 60)}m`;
  return `${Math.floor(whole / 86400)}d ${Math.floor((whole % 86400) / 3600)}h`;
}

// By hand: the browser's own formats take 10 ms to be loaded, and a thousand tiles need one each.

/** Write a number, with a comma after thousands. */
export const digits = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");

export const counted = (number, noun) => `${digits(number)} ${noun}${number === 1 ? "" : "s"}`;

const two = (number) => String(number).padStart(2, "0");

/** Write a time of the day, where the browser is. */
export function clock(seconds) {
  const at = new Date(seconds * 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** How long somebody does something, such as "waits 40s"; kept up to date by `tick`. */
export function age(since, does) {
  return make("span", { className: "age", "data-since": since, "data-does": does });
}

/** Bring all ages below an element up to date. */
export function tick(now, below = document) {
  for (const element of below.querySelectorAll("[data-since]")) {
    say(element, `${element.dataset.does} ${span(now - Number(element.dataset.since))}`);
  }
}
