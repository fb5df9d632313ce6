// Keeps a page up to date while its runs go on: asks for their state and, when the logs have grown, reads the page again
// and takes over its texts and data. Text from runs comes escaped from the server.
(function () {
  "use strict";
  const POLL = 500; // milliseconds
  const FEW = 1500; // tasks that are shown at once
  let page = null, about = null;
  const wait = (time) => new Promise((done) => setTimeout(done, time));
  const tell = (kind, text) => {
    const state = document.getElementById("state");
    if (!state) return;
    state.className = "state " + kind;
    state.textContent = text;
  };
  let leaving = false;
  function reload() {
    leaving = true;
    tell("running", "something new has begun; the page is made again …");
    location.reload();
  }
  async function read(url) {
    const answer = await fetch(url, { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    return answer;
  }

  // ---------------------------------------------------------------- timelines
  function tasks(run) {
    return ["used", "spare", "cut"].reduce((sum, part) => sum + (page.find(`${run.name} ${part}`)?.data.start.length || 0), 0);
  }
  function follow(run, end, first) {
    const range = page.find(run.name + " timeline").x_range, box = document.getElementById(run.name + "-follow");
    const high = range.bounds[1], few = tasks(run) <= FEW;
    if (!first && range.end < high * (1 - 1e-9)) box.checked = false; // somebody looks at something else
    const span = range.end - range.start, whole = few && range.start <= 0;
    end = Math.max(end, high);
    range.setv({ bounds: [0, end], reset_start: 0, reset_end: end });
    if (box.checked) range.setv({ start: whole ? 0 : Math.max(0, end - span), end });
    page.look(run);
  }
  // ---------------------------------------------------------------- the whole page again
  function texts(other) {
    const old = document.querySelectorAll("[data-live]"), now = other.querySelectorAll("[data-live]");
    if (old.length !== now.length) return false;
    old.forEach((one, i) => {
      if (one.innerHTML !== now[i].innerHTML) one.replaceChildren(...[...now[i].childNodes].map((node) => document.adoptNode(node)));
    });
    return true;
  }
  const alike = (a, b) =>
    a.name === b.name && a.renderers.length === b.renderers.length &&
    a.renderers.every((one, i) => Object.keys(one.data_source.data).sort().join() === Object.keys(b.renderers[i].data_source.data).sort().join());
  function renew(old, now) {
    const seen = new Set();
    old.renderers.forEach((one, i) => {
      const other = now.renderers[i], mapper = one.glyph.color_mapper;
      if (mapper && mapper.low !== undefined) mapper.setv({ low: other.glyph.color_mapper.low, high: other.glyph.color_mapper.high });
      if (!one.data_source || seen.has(one.data_source)) return;
      seen.add(one.data_source);
      page.lengths.delete(one.data_source);
      one.data_source.data = other.data_source.data;
    });
    if (about.curves.includes(old.name) || old.name.endsWith(" timeline")) return;
    for (const way of ["x_range", "y_range"])
      if (old[way].type === "Range1d" && !page.zoomed(old[way])) {
        const { start, end } = now[way];
        old[way].setv({ start, end, reset_start: start, reset_end: end });
      }
  }
  async function whole() {
    const other = new DOMParser().parseFromString(await (await read(location.pathname)).text(), "text/html");
    const found = other.getElementById("figures");
    if (!found) return reload();
    const next = page.doc.constructor.from_json(JSON.parse(found.textContent));
    const fresh = JSON.parse(other.getElementById("about").textContent);
    const old = page.doc.roots(), now = next.roots();
    if (old.length !== now.length || !old.every((figure, i) => alike(figure, now[i])) || !texts(other)) return reload();
    old.forEach((figure, i) => renew(figure, now[i]));
    fresh.runs.forEach((run, i) => Object.assign(about.runs[i], run));
    about.live = fresh.live;
    for (const run of about.runs) {
      const figure = now.find((one) => one.name === run.name + " timeline");
      if (!figure) continue;
      follow(run, figure.x_range.bounds[1]);
      const ask = document.getElementById(run.name + "-step"), fresh = other.getElementById(run.name + "-step");
      if (ask && fresh) ask.max = fresh.max;
    }
    if (about.curves.length) page.curves(true);
  }

  // ---------------------------------------------------------------- start
  let reading = false;
  async function runs() {
    page = window.anykPage;
    about = page.about;
    for (const run of about.runs)
      if (page.find(run.name + " timeline")) follow(run, 0, true);
    for (;;) {
      let pause = POLL;
      try {
        const answer = await (await read(`${location.pathname}/state`)).json();
        tell(...answer.state);
        if (answer.due && answer.seals !== about.live && !reading) {
          reading = true; // the state goes on meanwhile
          whole().catch(() => {}).finally(() => (reading = false));
        }
        if (leaving) return;
        if (answer.state[0] === "ended") pause = 4 * POLL;
      } catch (error) {
        tell("gone", `nobody answers; is anyk watch still running? (${error.message})`);
        pause = 4 * POLL;
      }
      document.documentElement.dataset.polled = String(Number(document.documentElement.dataset.polled || 0) + 1);
      do await wait(pause); while (document.hidden);
    }
  }
  async function list() {
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    const dress = () => (document.documentElement.dataset.theme = dark.matches ? "dark" : "light");
    dark.addEventListener("change", dress);
    dress();
    for (;;) {
      do await wait(2 * POLL); while (document.hidden);
      try {
        if (!texts(new DOMParser().parseFromString(await (await read("/")).text(), "text/html"))) reload();
      } catch {
        tell("gone", "nobody answers; is anyk watch still running?");
      }
    }
  }
  if (document.getElementById("about")) document.addEventListener("anyk-ready", runs);
  else list();
})();
