// The page's own part: controls, receipts and colours. Text from runs is only ever set as text.
(function () {
  "use strict";
  const about = JSON.parse(document.getElementById("about").textContent);
  const FATES = about.fates;
  let doc = null;
  const find = (name) => doc.get_model_by_name(name);
  const make = (tag, text, cls) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (cls) made.className = cls;
    return made;
  };
  const seconds = (value) =>
    !Number.isFinite(value) ? "unknown" :
    value !== 0 && Math.abs(value) < 0.1 ? Number((1e3 * value).toPrecision(3)) + " ms" :
    Number(value.toPrecision(value >= 100 ? 5 : 3)) + " s";

  // ---------------------------------------------------------------- colours: light, dark, print
  // Glyphs are made in the colours for paper; about.dark has the colour in the dark of each.
  const paper = new Map(); // glyph: its colours on paper, by property
  function recolour(glyph, theme) {
    if (!paper.has(glyph)) {
      const own = {};
      for (const name of ["line_color", "fill_color", "hatch_color"]) {
        const colour = glyph[name]?.value ?? glyph[name];
        if (typeof colour === "string" && about.dark[colour]) own[name] = colour;
      }
      paper.set(glyph, own);
    }
    for (const [name, colour] of Object.entries(paper.get(glyph))) glyph[name] = theme === "dark" ? about.dark[colour] : colour;
  }
  function paint(theme) {
    const look = getComputedStyle(document.documentElement);
    const [ink, dim, line] = ["--ink", "--dim", "--line"].map((name) => look.getPropertyValue(name).trim());
    for (const figure of doc.roots()) {
      for (const axis of [...figure.above, ...figure.below, ...figure.left, ...figure.right]) {
        if (axis.axis_label_text_color !== undefined) {
          axis.setv({
            axis_label_text_color: ink, major_label_text_color: dim, axis_line_color: dim,
            major_tick_line_color: dim, minor_tick_line_color: null, axis_label_text_font_style: "normal",
            axis_label_text_font_size: "12px",
          });
        } else if (axis.title_text_color !== undefined) {
          axis.setv({ title_text_color: dim, major_label_text_color: dim, background_fill_alpha: 0 });
        }
      }
      for (const grid of figure.center) if (grid.grid_line_color !== undefined) grid.grid_line_color = line;
      for (const one of figure.renderers) if (one.glyph) recolour(one.glyph, theme);
    }
  }
  const preferred = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const theme = () => chosen || (preferred.matches ? "dark" : "light");
  function dress(now) {
    document.documentElement.dataset.theme = now;
    if (doc) paint(now);
  }
  preferred.addEventListener("change", () => dress(theme()));
  document.getElementById("theme").addEventListener("click", () => {
    chosen = theme() === "dark" ? "light" : "dark";
    dress(chosen);
  });
  window.addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details")) one.open = true;
    dress("light");
  });
  window.addEventListener("afterprint", () => dress(theme()));

  // ---------------------------------------------------------------- curves
  const hidden = new Set();
  const kind = (name) => Bokeh.Models.get(name);
  function span(values, log, least) {
    let low = Infinity, high = -Infinity;
    for (const array of values)
      for (const value of array)
        if (Number.isFinite(value) && (!log || value > 0) && value >= least) {
          if (value < low) low = value;
          if (value > high) high = value;
        }
    if (low > high) return log ? [0.1, 1] : [0, 1];
    if (log) return [low / Math.pow(high / low || 2, 0.04) / 1.02, high * Math.pow(high / low || 2, 0.04) * 1.02];
    const room = 0.04 * (high - low || Math.abs(high) || 1);
    return [low - room, high + room];
  }
  const zoomed = (range) => range.start !== range.reset_start || range.end !== range.reset_end;
  function curves(grown) {
    const axis = document.querySelector("input[name=axis]:checked").value;
    const log = { x: document.getElementById("logx").checked, y: document.getElementById("logy").checked };
    for (const name of about.curves) {
      const figure = find(name);
      const xs = [], ys = [];
      for (const one of figure.renderers) {
        if (!one.tags.length) continue;
        one.visible = one.tags[0] === axis && !hidden.has(one.tags[1]);
        if (!one.visible) continue;
        const data = one.data_source.data;
        xs.push(data.x);
        for (const key of ["y", "low", "high"]) if (data[key]) ys.push(data[key]);
      }
      const target = figure.tags[1];
      if (typeof target === "number") ys.push([target]);
      for (const way of ["x", "y"]) {
        const axes = way === "x" ? figure.below : figure.left;
        const least = way === "y" && typeof figure.tags[2] === "number" ? figure.tags[2] : -Infinity;
        const [start, end] = span(way === "x" ? xs : ys, log[way], least);
        const from = way === "x" && !log.x ? 0 : start, range = figure[way + "_range"];
        const ends = { reset_start: from, reset_end: end };
        if (grown === true) {  // there are more points; who has zoomed in stays there
          range.setv(zoomed(range) ? ends : { start: from, end, ...ends });
          continue;
        }
        figure[way + "_scale"] = new (kind(log[way] ? "LogScale" : "LinearScale"))();
        range.setv({ start: from, end, ...ends });
        axes[0].visible = !log[way];
        axes[1].visible = log[way];
        const grid = figure.center.filter((one) => one.dimension === (way === "x" ? 0 : 1))[0];
        if (grid) grid.axis = axes[log[way] ? 1 : 0];
        if (way === "x") for (const one of axes) one.axis_label = new (kind("PlainText"))({ text: axis === "seconds" ? figure.tags[0] : "step" });
      }
    }
  }

  // ---------------------------------------------------------------- timelines
  function zoom(figure, factor) {
    const range = figure.x_range, [low, high] = range.bounds;
    const middle = (range.start + range.end) / 2, half = ((range.end - range.start) / 2) * factor;
    range.setv({ start: Math.max(low, middle - half), end: Math.min(high, middle + half) });
  }
  const MOST = 12000; // tasks drawn at once
  const took = (row) => (row.unknown === undefined ? row.waiting + row.computing + row.idle + row.sending : row.unknown);
  const lengths = new Map();
  function taken(source) {
    if (!lengths.has(source)) {
      const data = source.data, parts = data.unknown ? [data.unknown] : [data.waiting, data.computing, data.idle, data.sending];
      const all = Float32Array.from(data.start, (_, i) => parts.reduce((sum, part) => sum + part[i], 0));
      lengths.set(source, [all, all.reduce((most, one) => Math.max(most, one), 0)]);
    }
    return lengths.get(source);
  }
  function first(sorted, value) {
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low;
  }
  function sight(run) {
    const range = find(run.name + " timeline").x_range, found = [];
    let count = 0;
    for (const part of ["used", "spare", "cut"]) {
      const source = find(`${run.name} ${part}`);
      if (!source) continue;
      const [all, longest] = taken(source), start = source.data.start, rows = [];
      for (let i = first(start, range.start - longest); i < start.length && start[i] <= range.end; i++)
        if (start[i] + all[i] >= range.start) rows.push(i);
      count += rows.length;
      found.push([find(`${run.name} ${part} view`), rows]);
    }
    const every = Math.max(1, Math.ceil(count / MOST));
    for (const [view, rows] of found)
      view.filter = new (kind("IndexFilter"))({ indices: every === 1 ? rows : rows.filter((_, i) => i % every === 0) });
    document.getElementById(run.name + "-drawn").textContent =
      every === 1 ? `${count.toLocaleString("en")} tasks in sight` : `one in ${every} of the ${count.toLocaleString("en")} tasks in sight is drawn; zoom in to see all`;
    lines(run);
  }
  const waiting = new Set();
  function look(run) {
    if (waiting.has(run)) return;
    waiting.add(run);
    requestAnimationFrame(() => {
      waiting.delete(run);
      sight(run);
    });
  }
  function lines(run) {
    const figure = find(run.name + " timeline"), drawn = find(run.name + " steps");
    const renderer = figure.renderers.find((one) => one.name === "steps");
    if (!renderer) return;
    let count = 0;
    for (const time of drawn.data.seconds) if (time >= figure.x_range.start && time <= figure.x_range.end) count++;
    renderer.visible = count <= 120;
  }

  // ---------------------------------------------------------------- receipts
  function rows(run, slot, step) {
    const found = { used: [], spare: [], cut: [] };
    for (const part of ["used", "spare", "cut"]) {
      const source = find(`${run.name} ${part}`);
      if (!source) continue;
      const data = source.data;
      for (let i = 0; i < data.step.length; i++)
        if (data.step[i] === step && (!data.slot || data.slot[i] === slot)) {
          const row = Object.fromEntries(Object.keys(data).map((key) => [key, data[key][i]]));
          found[part === "used" || row.fate === undefined ? part : FATES[row.fate] === "cut off" ? "cut" : "spare"].push(row);
        }
    }
    for (const [one, at, worker, task, version, weight] of run.reuses || [])
      if (one === slot && at === step) found.used.push({ worker, task, version, step, weight, kept: true });
    for (const part of Object.values(found)) part.sort((a, b) => a.worker - b.worker || a.task - b.task);
    return found;
  }
  function table(head, body) {
    const made = make("table"), top = made.createTHead().insertRow();
    for (const word of head) top.append(make("th", word));
    const inside = made.createTBody();
    for (const cells of body) {
      const row = inside.insertRow();
      for (const cell of cells) row.insertCell().textContent = cell;
    }
    const box = make("div", undefined, "scroll");
    box.append(made);
    return box;
  }
  function weights(run, used) {
    if (!run.works || used.some((row) => row.kept)) return null;
    const total = new Array(run.partitions).fill(0);
    for (const row of used) {
      const [parts, coefficients] = run.works[row.work];
      parts.forEach((part, i) => (total[part] += row.weight * coefficients[i]));
    }
    return total;
  }
  function weighed(total) {
    const low = Math.min(...total), high = Math.max(...total);
    const short = (value) => Number(value.toPrecision(3));
    if (high - low <= 1e-6 * Math.max(1, Math.abs(high))) return `All ${total.length} partitions counted with weight ${short(high)}.`;
    if (total.length > 64) return `The ${total.length} partitions counted with weights from ${short(low)} to ${short(high)}.`;
    return "Partitions counted with weights " + total.map((value, i) => `${i}: ${short(value)}`).join(", ") + ".";
  }
  function receipt(run, slot, step) {
    const box = document.getElementById(run.name + "-receipt");
    box.replaceChildren();
    const data = find(run.name + " steps").data;
    let at = -1;
    for (let i = 0; i < data.step.length; i++) if (data.step[i] === step && data.slot[i] === slot) at = i;
    if (at < 0) {
      box.append(make("p", `There is no step ${step} in this run.`));
      return;
    }
    document.getElementById(run.name + "-step").value = step;
    const model = run.slots.length > 1 ? ` of ${run.slots[slot]}` : "";
    const gain = Number(data.gain[at].toPrecision(3)), residual = Number(data.residual[at].toPrecision(3));
    box.append(make("h4", `Receipt of step ${step}${model}, taken at ${seconds(data.seconds[at])}`));
    box.append(make("p", `Residual ${residual}, gain ${gain}.`));
    const fleet = run.fleet.filter(([time]) => time < data.seconds[at]).pop();
    if (fleet) box.append(make("p", fleet[1] + "."));
    const found = rows(run, slot, step), total = weights(run, found.used);
    if (total) box.append(make("p", weighed(total)));
    box.append(make("h5", `${found.used.length} message${found.used.length === 1 ? "" : "s"} used`));
    box.append(table(["worker", "task", "weight", "staleness", "took"], found.used.map((row) => [
      row.worker, row.task, Number(row.weight.toPrecision(4)), row.step - 1 - row.version, row.kept ? "kept" : seconds(took(row)),
    ])));
    if (run.omitted) box.append(make("p", run.omitted));
    box.append(make("h5", found.cut.length ? `${found.cut.length} cut off` : "Nobody was cut off"));
    if (found.cut.length)
      box.append(table(["worker", "task", "ran for", "would have come after another"], found.cut.map((row) => [
        row.worker, row.task, seconds(took(row)), seconds(row.late === undefined ? NaN : row.late),
      ])));
    if (found.spare.length) {
      box.append(make("h5", `${found.spare.length} in time but not needed`));
      box.append(make("p", "Workers " + [...new Set(found.spare.map((row) => row.worker))].join(", ") + "."));
    }
  }

  // ---------------------------------------------------------------- start
  function watch(run) {
    const figure = find(run.name + " timeline");
    if (!figure) return;
    figure.x_range.connect(figure.x_range.properties.start.change, () => look(run));
    figure.x_range.connect(figure.x_range.properties.end.change, () => look(run));
    sight(run);
    const first = [figure.x_range.start, figure.x_range.end];
    const act = {
      in: () => zoom(figure, 0.5), out: () => zoom(figure, 2),
      whole: () => figure.x_range.setv({ start: figure.x_range.bounds[0], end: figure.x_range.bounds[1] }),
      first: () => figure.x_range.setv({ start: first[0], end: first[1] }),
    };
    for (const button of document.querySelectorAll(`[data-run="${run.name}"][data-zoom]`))
      button.addEventListener("click", act[button.dataset.zoom]);
    for (const part of ["used", "spare", "cut"]) {
      const source = find(`${run.name} ${part}`);
      if (!source) continue;
      const selected = source.selected;
      selected.connect(selected.properties.indices.change, () => {
        const i = selected.indices[0];
        if (i !== undefined && source.data.step[i] > 0)
          receipt(run, source.data.slot ? source.data.slot[i] : 0, source.data.step[i]);
      });
    }
    const ask = () => receipt(run, Number(document.getElementById(run.name + "-slot")?.value || 0), Number(document.getElementById(run.name + "-step").value));
    document.getElementById(run.name + "-ask").addEventListener("submit", (event) => {
      event.preventDefault();
      ask();
    });
  }
  async function begin() {
    dress(theme());
    const model = JSON.parse(document.getElementById("figures").textContent);
    await Bokeh.embed.embed_items({ page: model }, [{ docid: "page", roots: about.roots, root_ids: Object.keys(about.roots) }]);
    doc = Bokeh.documents[0];
    for (const run of about.runs) watch(run);
    if (about.curves.length) {
      for (const one of document.querySelectorAll("#curves-controls input")) one.addEventListener("change", () => curves());
      for (const button of document.querySelectorAll("[data-line]"))
        button.addEventListener("click", () => {
          const number = Number(button.dataset.line);
          if (!hidden.delete(number)) hidden.add(number);
          button.setAttribute("aria-pressed", String(!hidden.has(number)));
          curves();
        });
      curves();
    }
    paint(theme());
    document.documentElement.dataset.ready = "yes";
    window.anykPage = { about, doc, find, curves, look, lengths, zoomed };  // for a page that follows runs
    document.dispatchEvent(new Event("anyk-ready"));
  }
  document.addEventListener("DOMContentLoaded", begin);
})();
