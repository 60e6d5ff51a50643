// The last minutes as a picture: instances as rows, jobs as bars. The caption says in words what it shows.

import { byId, clock, counted, digits, say } from "./dom.js";

const LONGEST = 15 * 60; // seconds
const SHORTEST = 120;
const MOST_ROWS = 40;
const SLOT_HEIGHT = 7;
const ROW_GAP = 5;
const MOST_SLOTS_DRAWN = 4;
const AXIS = 20;

/** Collect what was when, by instance: rows of those on which something happened last, oldest first. */
export function rowsOf(known, over, now) {
  const from = now - LONGEST;
  const rows = new Map();
  for (const [place, each] of known.instances) {
    const jobs = [];
    each.slots.forEach((slot, number) => {
      if (slot !== null && slot[1] !== null) jobs.push({ slot: number, name: slot[0], began: slot[1], ended: now, lost: false });
    });
    const isReady = each.slots.length > 0;
    rows.set(place, { place, id: each.id, began: each.since, ready: isReady ? null : now, ended: now, gone: false, lost: false, mood: each.mood, jobs });
  }
  for (const [place, slot, name, began, ready, ended, lost] of over) {
    if (ended < from) continue;
    if (slot === null) {
      const known = rows.get(place);
      const jobs = known?.jobs ?? [];
      rows.set(place, { place, id: place.slice(place.indexOf("/") + 1), began, ready: ready ?? ended, ended, gone: true, lost, mood: "dim", jobs });
    } else {
      if (!rows.has(place)) {
        rows.set(place, { place, id: place.slice(place.indexOf("/") + 1), began, ready: began, ended, gone: true, lost: false, mood: "dim", jobs: [] });
      }
      rows.get(place).jobs.push({ slot, name, began, ended, lost });
    }
  }
  for (const row of rows.values()) {
    row.last = Math.max(row.gone ? row.ended : row.began, ...row.jobs.map((job) => (job.ended >= now ? job.began : job.ended)));
    const first = Math.min(...row.jobs.map((job) => job.began));
    if (row.ready === null) row.ready = Math.min(row.began, first);
  }
  const shown = [...rows.values()].sort((a, b) => b.last - a.last).slice(0, MOST_ROWS).sort((a, b) => a.began - b.began);
  return { rows: shown, all: rows.size };
}

function caption({ rows, all }, known, over, now, from) {
  const recent = over.filter((each) => each[5] >= from);
  const jobs = recent.filter((each) => each[1] !== null);
  const gone = recent.length - jobs.length;
  const lost = jobs.filter((each) => each[6]).length;
  let running = 0;
  for (const each of known.instances.values()) running += each.slots.filter((slot) => slot !== null).length;
  const parts = [`${counted(running, "job")} run${running === 1 ? "s" : ""}`, `${jobs.length} ended`];
  if (lost) parts.push(`${lost} of them lost with their instances`);
  if (gone) parts.push(`${counted(gone, "instance")} went`);
  const which = all > rows.length ? ` Shown are the ${rows.length} of ${digits(all)} instances on which something happened last.` : "";
  return `Since ${clock(from)}: ${parts.join(", ")}.${which}`;
}

export function drawTimeline(known, over, now) {
  const found = rowsOf(known, over, now);
  const first = Math.min(now - SHORTEST, ...found.rows.map((row) => row.began));
  const from = Math.max(now - LONGEST, first);
  say(byId("timeline-words"), caption(found, known, over, now, from));
  paint(byId("chart"), found.rows, from, now);
}

function paint(canvas, rows, from, now) {
  const width = canvas.clientWidth || canvas.parentElement.clientWidth;
  const slots = (row) => Math.min(MOST_SLOTS_DRAWN, 1 + Math.max(0, ...row.jobs.map((job) => job.slot)));
  const heights = rows.map((row) => Math.max(12, slots(row) * SLOT_HEIGHT) + ROW_GAP);
  const height = heights.reduce((sum, each) => sum + each, 0) + AXIS;
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  const label = Math.min(150, width * 0.28);
  const x = (at) => label + ((Math.max(at, from) - from) / (now - from)) * (width - label - 2);
  axis(pen, { x, from, now, height, width, label }, colour);
  let y = 0;
  rows.forEach((row, number) => {
    drawRow(pen, row, { x, y, height: heights[number] - ROW_GAP, slots: slots(row), label, from }, colour);
    y += heights[number];
  });
}

function axis(pen, { x, from, now, height, width, label }, colour) {
  const step = [15, 30, 60, 120, 300].find((each) => ((now - from) / each) * 62 < width - label) ?? 300;
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "bottom";
  for (let at = Math.ceil(from / step) * step; at < now; at += step) {
    pen.fillStyle = colour("line");
    pen.fillRect(Math.round(x(at)), 0, 1, height - AXIS + 4);
    pen.fillStyle = colour("faint");
    if (x(at) > label + 22 && x(at) < width - 26) pen.fillText(clock(at).slice(0, step < 60 ? 8 : 5), x(at), height);
  }
}

function drawRow(pen, row, { x, y, height, slots, label, from }, colour) {
  const middle = y + height / 2;
  pen.font = "12px system-ui, sans-serif";
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  pen.fillStyle = row.mood === "bad" ? colour("bad") : row.gone ? colour("faint") : colour("text");
  pen.fillText(fitting(pen, row.id, label - 8), 0, middle);
  if (row.ready > from) bar(pen, x(row.began), middle - 2, x(row.ready), 4, colour("busy-fill"));
  if (row.ready < row.ended) bar(pen, x(row.ready), y, x(row.ended), height, colour("ready-fill"));
  const tall = height / slots;
  for (const job of row.jobs) {
    if (job.ended < from || job.slot >= MOST_SLOTS_DRAWN) continue;
    bar(pen, x(job.began), y + job.slot * tall + 0.5, x(job.ended) - 1, tall - 1, colour(job.lost ? "bad-fill" : "good-fill"));
    if (job.lost) strike(pen, x(job.ended), y + job.slot * tall, tall, colour("bad"));
  }
  if (row.gone && row.lost) strike(pen, x(row.ended), y, height, colour("bad"));
}

function bar(pen, left, top, right, height, fill) {
  pen.fillStyle = fill;
  pen.fillRect(left, top, Math.max(1, right - left), height);
}

function strike(pen, x, y, height, stroke) {
  pen.strokeStyle = stroke;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.moveTo(x - 4, y);
  pen.lineTo(x + 4, y + height);
  pen.moveTo(x + 4, y);
  pen.lineTo(x - 4, y + height);
  pen.stroke();
}

/** Cut a name in its middle: what tells instances apart is often at the end. */
function fitting(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  for (let kept = Math.min(text.length, 40); kept > 2; kept -= 1) {
    const cut = `${text.slice(0, Math.ceil(kept / 2) - 1)}…${text.slice(text.length - Math.floor(kept / 2))}`;
    if (pen.measureText(cut).width <= room) return cut;
  }
  return "…";
}
