// Keeps a page up to date while its runs go on: asks for news, adds them to the figures' data, and now and then reads
// the whole page again and takes over its texts and data. Text from runs comes escaped from the server.
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

  // ---------------------------------------------------------------- news
  const KINDS = [Float64Array, Float32Array, Int32Array, Uint32Array, Uint16Array, Uint8Array];
  function append(source, more, key) {
    const data = source.data, old = data[key].length, size = old + more[key].length;
    if (size === old) return;
    const at = (i) => (i < old ? data[key][i] : more[key][i - old]);
    let order = null;
    for (let i = Math.max(old, 1); i < size && !order; i++)
      if (at(i) < at(i - 1)) order = Array.from({ length: size }, (_, j) => j).sort((a, b) => at(a) - at(b) || a - b);
    const joined = (name) => {
      const made = new (KINDS.find((kind) => data[name] instanceof kind) || Array)(size), news = more[name] || [];
      for (let i = 0; i < size; i++) {
        const j = order ? order[i] : i;
        made[i] = j < old ? data[name][j] : news[j - old] ?? NaN;
      }
      return made;
    };
    source.data = Object.fromEntries(Object.keys(data).map((name) => [name, joined(name)]));
    page.lengths.delete(source);
  }
  const known = (news, name) => news.evaluated[name]?.some((value) => value !== null);
  function evaluated(i, news) {
    for (const column of Object.keys(news.evaluated)) {
      if (["seconds", "steps"].includes(column) || !known(news, column)) continue;
      const k = about.columns.indexOf(column);
      if (k < 0) return reload(); // the first value of this kind: its figure is not there yet
      if (about.several[i]) continue; // a median over several runs
      const kept = news.evaluated[column].map((value, j) => (value === null ? -1 : j)).filter((j) => j >= 0);
      const y = kept.map((j) => news.evaluated[column][j]);
      for (const one of page.find(about.curves[k]).renderers)
        if (one.tags[1] === i && one.glyph.type === "Line")
          append(one.data_source, { x: kept.map((j) => news.evaluated[one.tags[0]][j]), y }, "x");
    }
  }
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
  function handed(run, news) {
    if (!page.find(run.name + " timeline")) return reload();
    for (const [part, more] of Object.entries(news.tasks)) {
      const source = page.find(`${run.name} ${part}`);
      if (!source) return reload(); // the first task that ended in this way
      append(source, more, "start");
    }
    append(page.find(run.name + " steps"), news.steps, "seconds");
    const ask = document.getElementById(run.name + "-step");
    if (news.steps.step.length) ask.max = Math.max(Number(ask.max), ...news.steps.step);
    follow(run, news.end);
  }
  function take(answer) {
    if (answer.lost) return reload();
    answer.runs.forEach((news, i) => {
      if (leaving) return;
      const run = about.runs[i];
      about.live[i] = news.seal;
      if (news.evaluated) evaluated(i, news);
      if (news.tasks && (Object.keys(news.tasks).length || news.steps.step.length)) handed(run, news);
    });
    if (leaving) return;
    if (answer.runs.some((news) => news.evaluated)) page.curves(true);
    tell(...answer.state);
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
      if (figure) follow(run, figure.x_range.bounds[1]);
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
        const answer = await (await read(`${location.pathname}/news?seals=${about.live.join(",")}`)).json();
        take(answer);
        if (leaving) return;
        if (answer.again && !reading) {
          reading = true; // news go on meanwhile
          whole().catch(() => {}).finally(() => (reading = false));
        }
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
