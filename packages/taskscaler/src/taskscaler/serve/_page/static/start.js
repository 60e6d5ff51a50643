// Begins again if a part of the page cannot be had, as when the network changes meanwhile: nothing else would say so.

const RETRY = 1000; // milliseconds

addEventListener("error", ({ target }) => {
  if (!(target instanceof HTMLScriptElement || (target instanceof HTMLLinkElement && target.rel === "stylesheet"))) return;
  document.getElementById("connection").textContent = "connection lost; trying again";
  setTimeout(() => location.reload(), RETRY);
}, true);
