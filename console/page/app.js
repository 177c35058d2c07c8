"use strict";
// The page asks /console/state and /console/requests each second and puts the answers into elements that stay. Everything that comes from
// outside is set as text, never as markup.
(() => {
  const $ = (id) => document.getElementById(id);

  // el makes an element with classes and children.
  function el(tag, classes, ...children) {
    const e = document.createElement(tag);
    if (classes) e.className = classes;
    e.append(...children);
    return e;
  }

  // say sets a text if it differs: an element that is read out or selected is left alone.
  function say(e, text) {
    if (e.textContent !== text) e.textContent = text;
  }

  // keyed makes parent's children those that items ask for, keeping the ones it has: by key(item), made once, updated each time.
  function keyed(parent, items, key, make, update) {
    const had = new Map([...parent.children].map((c) => [c.dataset.key, c]));
    let at = parent.firstElementChild;
    for (const item of items) {
      const k = key(item);
      let child = had.get(k);
      if (child) {
        had.delete(k);
      } else {
        child = make(item);
        child.dataset.key = k;
      }
      if (child === at) at = at.nextElementSibling;
      else parent.insertBefore(child, at);
      update(child, item);
    }
    for (const gone of had.values()) gone.remove();
  }

  // Numbers ------------------------------------------------------------------

  const NONE = "–";
  const known = (x) => typeof x === "number";
  const digits = (x, n) => x.toLocaleString("en", { minimumFractionDigits: n, maximumFractionDigits: n });

  function ms(x) {
    if (!known(x)) return NONE;
    if (x < 9.95) return digits(x, 1) + " ms";
    if (x < 999.5) return digits(x, 0) + " ms";
    if (x < 9995) return digits(x / 1000, 2) + " s";
    if (x < 99950) return digits(x / 1000, 1) + " s";
    return digits(x / 60000, 1) + " min";
  }
  // msAxis is ms without the decimals that round steps don't have.
  const msAxis = (x) => (x >= 600000 ? +(x / 60000).toFixed(1) + " min" : x >= 1000 ? +(x / 1000).toFixed(2) + " s" : +x.toFixed(1) + " ms");
  const rate = (x) => (known(x) ? digits(x, x < 9.95 ? 1 : 0) : NONE);
  const share = (x) => (known(x) ? digits(100 * x, 0) + " %" : NONE);
  const count = (x) => (known(x) ? digits(x, 0) : NONE);
  const compact = (x) => x.toLocaleString("en", { notation: "compact" });
  const clock = (date) => date.toLocaleTimeString("en-GB");
  const plural = (n, one, many) => digits(n, 0) + " " + (n === 1 ? one : many);
  const cost = (d, x) => (d.cost ? ms(x) : known(x) ? digits(x, 3) : NONE);

  // Plots --------------------------------------------------------------------

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const nameOf = (side) => side.name || "this gateway";

  // ceiling is the end of an axis: it changes in few, round steps.
  function ceiling(x, least) {
    x = Math.max(x * 1.05, least);
    const power = 10 ** Math.floor(Math.log10(x));
    for (const step of [1, 1.5, 2, 3, 4, 5, 6, 8, 10]) if (step * power >= x) return step * power;
    return 10 * power;
  }

  const plots = [
    { id: "plot-ttft", axis: msAxis, least: 20, lines: [{ key: "p50", label: "P50", width: 2 }, { key: "p95", label: "P95", width: 1.5, dash: [5, 4] }], show: ms },
    { id: "plot-tokens", axis: (x) => digits(x, 0), least: 10, lines: [{ key: "tokens", width: 2 }], show: rate, more: ["rate", "failed"] },
    { id: "plot-cached", axis: share, top: 1, lines: [{ key: "cached", width: 2 }, { key: "expected", width: 1.5, dash: [5, 4] }], show: share },
  ];
  let hover = null; // the point under the pointer, null for the newest

  function draw(plot, sides) {
    const box = $(plot.id).querySelector(".plot");
    const lines = sides.flatMap((side, i) => plot.lines.map((line) => ({ ...line, side, i })));
    const width = box.clientWidth;
    const xs = Array.from({ length: shown.window }, (_, i) => i - shown.window + 1);
    const data = [xs, ...lines.map((l) => l.side.series[l.key])];
    const shape = JSON.stringify([plot.log, lines.map((l) => l.side.name)]);
    if (plot.chart && plot.shape === shape) {
      if (plot.chart.width !== width) plot.chart.setSize({ width, height: box.clientHeight });
      plot.chart.setData(data);
      return;
    }
    plot.chart?.destroy();
    plot.shape = shape;
    const muted = colour("--muted"), grid = { stroke: colour("--line"), width: 1 };
    const font = "12px " + getComputedStyle(document.body).fontFamily;
    plot.chart = new uPlot({
      width, height: box.clientHeight, padding: [8, 14, 0, 0], legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "console" }, points: { size: 7 } },
      scales: { x: { time: false, range: [1 - shown.window, 0] }, y: plot.log
          ? { distr: 3, range: (_, lo, hi) => [10 ** Math.floor(Math.log10(lo || 1)), 10 ** Math.ceil(Math.log10((hi || 1) * 1.01))] }
          : { range: (_, lo, hi) => [0, plot.top ?? ceiling(hi ?? 0, plot.least)] },
      },
      axes: [
        { stroke: muted, font, grid: { show: false }, ticks: { ...grid, size: 4 }, size: 26, gap: 4, splits: () => [-90, -60, -30, 0],
          values: (_, all) => all.map((x) => (x === 0 ? "now" : "−" + -x + " s")) },
        { stroke: muted, font, grid, ticks: { show: false }, size: 58, gap: 6, space: 42, values: (_, all) => all.map((x) => (x ? plot.axis(x) : x === 0 ? "0" : "")) },
      ],
      series: [{}, ...lines.map((l) => ({ stroke: colour("--side-" + (l.i % 4)), width: l.width, dash: l.dash, points: { show: true, filter: lonely, size: 5 } }))],
      hooks: { setCursor: [(u) => { hover = u.cursor.idx ?? null; values(); }] },
    }, data, box);
    plot.chart.over.addEventListener("mouseleave", () => { hover = null; values(); });
  }

  // lonely lists the points that have no neighbour: a line alone would not show them.
  function lonely(u, i) {
    const y = u.data[i];
    return y.flatMap((x, k) => (x != null && y[k - 1] == null && y[k + 1] == null ? [k] : []));
  }

  // values writes what the plots show at the pointer, or now.
  function values() {
    const sides = shown.sides.filter((s) => s.series);
    const at = hover ?? shown.window - 1;
    say($("when"), at === shown.window - 1 ? "now" : plural(shown.window - 1 - at, "second ago", "seconds ago"));
    for (const plot of plots) {
      const box = $(plot.id).querySelector(".values");
      box.classList.toggle("two", sides.length > 1);
      keyed(box, sides, (s) => "side " + s.name, () => el("div", "value-row"), (row, side) => {
        const i = sides.indexOf(side), items = [];
        if (sides.length > 1) items.push({ key: "name", side: nameOf(side) });
        for (const line of plot.lines) {
          const never = line.key === "p95" && side.series.never[at];
          items.push({ key: line.key, label: line.label, dash: line.dash, i, text: never ? "no first token" : plot.show(side.series[line.key][at]) });
        }
        for (const key of plot.more ?? []) {
          const x = side.series[key][at];
          items.push({ key, small: key === "rate" ? rate(x) + " requests/s" : x > 0 ? rate(x) + " unfinished/s" : "" });
        }
        keyed(row, items, (x) => x.key, makeValue, (e, x) => say(e.querySelector(".text"), x.side ?? x.small ?? x.text));
      });
    }
  }

  function makeValue(x) {
    if (x.side) return el("span", "value-side", el("span", "text"));
    if (x.small !== undefined) return el("span", "value", el("small", "text"));
    const key = el("i", x.dash ? "key dashed" : "key");
    key.style.color = `var(--side-${x.i % 4})`;
    const e = el("span", "value", key);
    if (x.label) e.append(el("small", "", x.label));
    e.append(el("b", "text"));
    return e;
  }

  function redraw() {
    const sides = shown.sides.filter((s) => s.series);
    for (const plot of plots) draw(plot, sides);
    values();
  }

  // Fleet --------------------------------------------------------------------

  function fleet() {
    const sides = shown.sides, box = $("fleet");
    box.classList.toggle("two", sides.length > 1);
    keyed(box, sides, (s) => "side " + s.name, makeSide, (e, side) => {
      keyed(e.querySelector(".pools"), side.pools, (p) => p.name, makePool, updatePool);
    });
    const all = sides.flatMap((s) => s.pools.flatMap((p) => p.endpoints));
    const ready = all.filter((e) => e.state === "ready" || e.state === "in doubt").length, followed = all.filter((e) => e.events && e.events.prefixes !== "guessed").length;
    const peers = sides.flatMap((s) => s.peers), heard = peers.filter((p) => p.heard).length;
    const says = [`${ready} of ${plural(all.length, "endpoint", "endpoints")} ready`, followed ? `KV events of ${followed} followed` : "prefixes guessed: no KV events"];
    if (peers.length) says.push(`${heard} of ${plural(peers.length, "peer", "peers")} heard` + (heard ? ", there and back " + ms(1000 * Math.max(...peers.map((p) => p.lagSeconds))) : ""));
    say($("fleet-summary"), all.length ? says.join(" · ") : "No endpoint is configured.");
  }

  function makeSide(side) {
    const e = el("div", "side");
    if (shown.sides.length > 1) {
      const title = el("h3", "", nameOf(side));
      title.style.borderColor = `var(--side-${shown.sides.indexOf(side) % 4})`;
      e.append(title);
      e.style.setProperty("--fill", `var(--side-${shown.sides.indexOf(side) % 4})`);
    }
    e.append(el("div", "pools side"));
    return e;
  }

  const makePool = () => el("div", "pool", el("div", "poolhead", el("h4", ""), el("p", "muted"), el("ul", "kinds muted")), el("ul", "tiles"));

  function updatePool(e, pool) {
    say(e.querySelector("h4"), pool.model || pool.name);
    const typical = `TTFT predicted for ${count(pool.typicalTokens)} new prompt tokens` + (pool.measured ? ", the mean here" : "");
    say(e.querySelector(".poolhead p"), [pool.guarded ? "guarded: hits have fallen and the backlog has risen, weights decide" : `decides by ${pool.profile}`, typical, pool.omitted ? plural(pool.omitted, "endpoint is", "endpoints are") + " not shown" : ""].filter(Boolean).join(" · "));
    keyed(e.querySelector(".kinds"), pool.kinds, (k) => k.name + " " + k.source, () => el("li", ""), (item, k) => say(item, kindText(k)));
    keyed(e.querySelector(".tiles"), pool.endpoints, (t) => t.name, makeTile, updateTile);
  }

  // kindText says where a kind's speed is from and what was learned on top of it.
  const kindText = (k) => `${plural(k.endpoints, "endpoint", "endpoints")} ${k.name}: steps ` + (k.source ? `of ${k.source}` : "not calibrated") +
    `, prompts × ${digits(k.prefill, 2)}, output × ${digits(k.decode, 2)}`;

  // eventText says in a few words how an endpoint's KV events are followed, eventTitle in more.
  const eventText = (x) => [!x ? "guessed" : x.prefixes, x && x.prefixes !== "guessed" ? `${compact(x.heldTokens)} tokens` : "", x?.gaps ? plural(x.gaps, "gap", "gaps") : ""].filter(Boolean).join(" · ");
  const eventTitle = (x) => (!x ? "It publishes no KV events: what it holds is guessed by what was sent there." : [x.why, `${count(x.heldTokens)} tokens held`,
    `${rate(x.eventsPerSecond)} events a second`, plural(x.gaps, "gap", "gaps"), plural(x.restarts, "restart", "restarts"), `so for ${count(x.sinceSeconds)} s`].filter(Boolean).join(", "));

  // adapterText counts the adapters in the slots and what is under way, adapterTitle names them.
  const adapterText = (t) => [t.resident.length ? `${t.resident.length} in slots` : "", t.waitingForSlot.length ? `${t.waitingForSlot.length} waiting` : "", t.loading > 0 ? "loading" : ""].filter(Boolean).join(" · ");
  const adapterTitle = (t) => [t.resident.join(", "), t.waitingForSlot.length ? "waiting for a slot: " + t.waitingForSlot.join(", ") : ""].filter(Boolean).join("; ");

  const field = (name, label, classes, meter) => {
    const e = el("div", classes || "", el("dt", "", label), ...(meter ? [el("span", "meter", el("i", ""))] : []), el("dd", ""));
    e.dataset.field = name;
    return e;
  };

  const makeTile = () => el("li", "card tile",
    el("div", "tilehead", el("span", "tilename"), el("span", "badge", el("i", "shape"), el("span", "state")), el("span", "tilekind"), el("p", "tilewhy")),
    el("dl", "counts", field("running", "running"), field("waiting", "waiting"), field("inFlight", "in flight")),
    el("dl", "meters", field("kvUse", "KV cache", "", true), field("cached", "prefix hits", "", true), field("ttft", "predicted TTFT", "wide")),
    el("dl", "notes", field("events", "prefixes"), field("adapters", "adapters"), field("errors", "failing"), field("slower", "slower")));

  function updateTile(e, t) {
    e.dataset.state = t.state;
    say(e.querySelector(".tilename"), t.name);
    say(e.querySelector(".state"), t.state);
    say(e.querySelector(".tilekind"), [t.kind.startsWith(t.engine) ? t.kind || "kind not known" : `${t.engine} · ${t.kind}`, t.host !== t.name ? t.host : ""].filter(Boolean).join(" · "));
    say(e.querySelector(".tilewhy"), t.why);
    const set = (name, text, share) => {
      const f = e.querySelector(`[data-field=${name}]`);
      say(f.querySelector("dd"), text);
      if (share !== undefined) f.querySelector("i").style.setProperty("--share", known(share) ? Math.min(Math.max(share, 0), 1) : 0);
    };
    set("running", count(t.running));
    set("waiting", count(t.waiting));
    set("inFlight", count(t.inFlight));
    set("kvUse", share(t.kvUse), t.kvUse);
    set("cached", share(t.cached), t.cached);
    set("ttft", ms(t.ttft));
    const note = (name, text, title) => {
      const f = e.querySelector(`[data-field=${name}]`);
      set(name, text);
      f.hidden = !text;
      if (f.title !== title) f.title = title;
    };
    note("events", eventText(t.events), eventTitle(t.events));
    note("adapters", adapterText(t), adapterTitle(t));
    note("slower", t.slower ? `${digits(t.slower, 1)} × its kind` : "", "how many times longer prompts take here than at the others of its kind");
    note("errors", t.errors >= .005 ? share(t.errors) : "", "share of its latest requests");
  }

  // Requests -----------------------------------------------------------------

  const list = $("list");
  let side = null; // the name of the side whose requests are listed
  let lines = [], fresh = []; // shown, and last heard of
  let chosen = null;

  const looking = () => list.matches(":hover") || list.contains(document.activeElement);

  function requests(force) {
    if (force || !looking() || lines.length === 0) {
      lines = fresh;
    } else { // the list stays as it is while somebody looks; only how requests ended is filled in
      const now = new Map(fresh.map((l) => [l.id, l]));
      lines = lines.map((l) => now.get(l.id) ?? l);
    }
    const held = new Set(lines.map((l) => l.id));
    const newer = fresh.filter((l) => !held.has(l.id)).length;
    say($("list-note"), newer ? "Held while you look" : "Newest first");
    say($("newer"), newer ? `Show ${newer} newer` : "Show newer");
    $("newer").disabled = newer === 0;
    keyed(list, lines, (l) => l.id, makeOption, updateOption);
    if (lines.length && !list.querySelector("[tabindex='0']")) list.firstElementChild.tabIndex = 0;
  }

  function makeOption() {
    const e = el("li", "option", el("span", "where"), el("span", "took"), el("span", "what"), el("span", "at"));
    e.setAttribute("role", "option");
    e.setAttribute("aria-selected", "false");
    e.tabIndex = -1;
    return e;
  }

  function updateOption(e, l) {
    const part = (name) => e.querySelector("." + name);
    say(part("where"), l.endpoint || "no endpoint");
    const took = part("took");
    took.classList.toggle("bad", !!l.outcome && !l.outcome.ok);
    say(took, !l.outcome ? "running" : !l.outcome.ok ? "did not finish" : known(l.outcome.ttft) ? ms(l.outcome.ttft) : "done");
    const what = [plural(Math.round(l.prompt ?? 0), "token", "tokens")];
    if (l.matched > 0 && l.prompt > 0) what.push((l.known === "at least" ? "≥ " : "") + share(l.matched / l.prompt) + (l.known === "guessed" ? " held there?" : " held there"));
    if (l.near > 1) what.push(`near tie of ${l.near}`);
    if (l.blind) what.push("blind");
    if (l.decisions > 1) what.push(`moved ${l.decisions - 1}×`);
    what.push(l.model || "no model");
    say(part("what"), what.join(" · "));
    say(part("at"), clock(new Date(l.time)));
    e.setAttribute("aria-selected", String(l.id === chosen));
  }

  function choose(option, focus) {
    if (!option) return;
    for (const o of list.querySelectorAll("[tabindex='0']")) o.tabIndex = -1;
    for (const o of list.querySelectorAll("[aria-selected=true]")) o.setAttribute("aria-selected", "false");
    option.tabIndex = 0;
    option.setAttribute("aria-selected", "true");
    if (focus) option.focus();
    chosen = option.dataset.key;
    explain(chosen);
  }

  list.addEventListener("click", (event) => choose(event.target.closest(".option"), true));
  list.addEventListener("keydown", (event) => {
    const all = [...list.children], i = all.indexOf(document.activeElement);
    const to = { ArrowDown: i + 1, ArrowUp: i - 1, Home: 0, End: all.length - 1, PageDown: i + 8, PageUp: i - 8, Enter: i, " ": i }[event.key];
    if (to === undefined || i < 0) return;
    event.preventDefault();
    choose(all[Math.min(Math.max(to, 0), all.length - 1)], true);
  });
  $("newer").addEventListener("click", () => {
    requests(true);
    list.scrollTop = 0;
  });

  function switches() {
    const box = $("sides");
    if (shown.sides.length < 2 || box.childElementCount > 1) return;
    box.hidden = false;
    for (const s of shown.sides) {
      const radio = el("input", "");
      Object.assign(radio, { type: "radio", name: "side", checked: s.name === side });
      radio.addEventListener("change", () => {
        side = s.name;
        lines = fresh = [];
        requests(true);
        beat();
      });
      box.append(el("label", "", radio, nameOf(s)));
    }
  }

  // Why ----------------------------------------------------------------------

  let asked = 0;
  async function explain(id) {
    const turn = ++asked;
    try {
      const answer = await ask("explain?" + new URLSearchParams({ side, id }));
      if (turn === asked) why(answer);
    } catch (error) {
      if (turn !== asked) return;
      say($("why-title"), "Why this endpoint?");
      $("why-body").replaceChildren(el("p", "empty muted", error.status === 404 ? "This request's decision is no longer kept: the newest are kept only." : "The gateway does not answer."));
    }
  }

  function fact(label, text) {
    return el("div", "", el("dt", "", label), el("dd", "", text));
  }

  function why(x) {
    const last = x.decisions.at(-1), best = last.bars.find((b) => b.marks.includes("chosen"));
    say($("why-title"), best ? `Why ${best.name}?` : "Why no endpoint?");
    const facts = el("dl", "facts", fact("model", last.model || "none"), fact("at", clock(new Date(last.time))), fact("request", x.id));
    if (best && known(last.expected)) facts.append(fact("expected TTFT", ms(last.expected)));
    if (x.outcome) {
      const o = x.outcome;
      if (known(o.ttft)) facts.append(fact("TTFT was", ms(o.ttft)));
      facts.append(fact("answer", o.ok ? plural(o.tokens, "token", "tokens") : "did not finish"));
      if (o.prompt > 0) facts.append(fact("prompt from cache", `${count(o.cached)} of ${plural(o.prompt, "token", "tokens")}, ${count(Math.round(best?.matched ?? 0))} expected`));
    } else {
      facts.append(fact("answer", "running, or ended too long ago"));
    }
    const many = x.decisions.length > 1;
    $("why-body").replaceChildren(facts, ...x.decisions.map((d, i) => decision(d, many ? `Decision ${i + 1} of ${x.decisions.length}` : "")));
  }

  // MEANS says in a few words what the terms of a cost are.
  const MEANS = {
    wait: "for what was sent there before", prefill: "of what is not held there", later: "for those who come after", launch: "for the step itself and those that decode in it", kvWait: "for room in the KV cache",
    adapter: "until it is loaded", decode: "a share of the time to decode",
  };

  // scaleOf is where bars end: at eight times the chosen total, or one endless queue would leave nothing to see of the rest.
  function scaleOf(d) {
    const best = d.bars.find((b) => b.marks.includes("chosen"))?.total ?? 0;
    const most = Math.max(...d.bars.map((b) => b.total ?? 0), 1e-9);
    return d.cost && best > 0 ? Math.min(most, 8 * best) : most;
  }

  function decision(d, title) {
    const e = el("div", "decision");
    if (title) e.append(el("h4", "", title));
    e.append(el("div", "sentences", ...d.sentences.map((s) => el("p", "", s))));
    const used = d.terms.map((_, t) => d.bars.some((b) => Math.abs(b.parts[t] ?? 0) > 0));
    const legend = el("ul", "terms", ...d.terms.flatMap((t, i) => {
      if (!used[i]) return [];
      const swatch = el("i", "");
      swatch.style.setProperty("--fill", `var(--term-${i % 8})`);
      const item = el("li", "", swatch, d.cost ? t.name : `${t.name} × ${t.weight}`);
      if (d.cost && MEANS[t.name]) item.append(el("span", "muted", MEANS[t.name]));
      return [item];
    }));
    if (d.bars.some((b) => b.total > scaleOf(d) * 1.001)) legend.append(el("li", "muted", "Bars that fade out go on beyond the scale."));
    e.append(legend, bars(d), numbers(d));
    return e;
  }

  // heldText says how much of the prompt an endpoint should find in its cache, and how that is known.
  const heldText = (b) => (b.known === "at least" ? "≥ " : "") + `${count(Math.round(b.matched ?? 0))} cached` + (b.known === "at least" ? "" : ", " + b.known);

  // bars draws each endpoint's terms.
  function bars(d) {
    const scale = scaleOf(d);
    const all = el("ol", "bars", ...d.bars.map((b) => {
      const is = b.marks.includes("chosen");
      const marks = el("span", "marks", ...b.marks.map((m) => el("span", "mark" + (m === "chosen" ? " chosen" : m === "near tie" ? " tie" : ""), m)));
      const row = el("li", is ? "bar chosen" : "bar", el("span", "who", b.name, marks, el("span", "held", heldText(b))));
      if (b.leftOut) {
        row.append(el("span", "out", "left out: " + b.leftOut));
        return row;
      }
      const stack = el("span", (b.total ?? 0) > scale * 1.001 ? "stack cut" : "stack", ...b.parts.flatMap((x, t) => {
        if (!(x > 0)) return [];
        const part = el("i", "");
        part.style.setProperty("--size", (100 * x) / scale + "%");
        part.style.setProperty("--fill", `var(--term-${t % 8})`);
        return [part];
      }));
      stack.setAttribute("role", "img");
      stack.setAttribute("aria-label", d.terms.map((t, i) => `${t.name} ${cost(d, b.parts[i])}`).join(", "));
      row.append(stack, el("span", "total", cost(d, b.total)));
      return row;
    }));
    return d.omitted ? el("div", "", all, el("p", "muted", plural(d.omitted, "more endpoint is", "more endpoints are") + " not shown.")) : all;
  }

  function scroller(label, child) {
    const e = el("div", "scroll", child);
    e.tabIndex = 0;
    e.setAttribute("role", "region");
    e.setAttribute("aria-label", label);
    return e;
  }

  function numbers(d) {
    const cell = (tag, text, scope) => {
      const c = el(tag, "", text);
      if (scope) c.scope = scope;
      return c;
    };
    const head = el("tr", "", cell("th", "endpoint", "col"), cell("th", "kind", "col"), cell("th", "tokens in its cache", "col"),
      ...d.terms.map((t) => cell("th", d.cost ? t.name : `${t.name} × ${t.weight}`, "col")), cell("th", "total", "col"));
    const rows = d.bars.map((b) => el("tr", "", cell("th", b.name, "row"), cell("td", b.kind), cell("td", heldText(b)),
      ...b.parts.map((x, i) => cell("td", cost(d, x) + (b.guessed[i] ? "?" : ""))), cell("td", b.leftOut ? "left out" : cost(d, b.total))));
    const table = scroller("Terms of each endpoint", el("table", "", el("thead", "", head), el("tbody", "", ...rows)));
    const text = scroller("The explanation as text", el("pre", "", d.text));
    return el("div", "", el("details", "", el("summary", "", "In numbers"), table), el("details", "", el("summary", "", "As the command prints it"), text));
  }

  // Asking -------------------------------------------------------------------

  let shown = { window: 120, sides: [] };
  let paused = false, since = null, timer = 0, beating = false;

  async function ask(path) {
    const answer = await fetch("console/" + path, { signal: AbortSignal.timeout(4000), cache: "no-store" });
    if (!answer.ok) throw Object.assign(new Error(answer.statusText), { status: answer.status });
    return answer.json();
  }

  function status(state, text) {
    $("status").dataset.state = state;
    say($("status-text"), text);
    document.body.toggleAttribute("data-stale", state === "lost");
  }

  const quiet = () => paused || document.hidden;

  // beat asks, shows what came, and comes again in a second.
  async function beat() {
    if (quiet() || beating) return;
    beating = true;
    clearTimeout(timer);
    try {
      const answer = await heard();
      if (answer) show(answer);
    } finally {
      beating = false;
      if (!quiet()) timer = setTimeout(beat, 1000);
    }
  }

  // heard is what the gateway says, null when it says nothing of use.
  async function heard() {
    try {
      const state = await ask("state");
      side ??= state.sides[0]?.name ?? "";
      const of = side;
      return { state, of, requests: await ask("requests?" + new URLSearchParams({ last: 50, side: of })) };
    } catch (error) {
      status("lost", error.status ? `The gateway answered with error ${error.status}.`
        : since ? `The gateway has not answered since ${clock(since)}. What is shown is from then.` : "The gateway does not answer.");
      return null;
    }
  }

  function show(answer) {
    shown = answer.state;
    if (answer.of === side) fresh = answer.requests;
    since = new Date();
    if (!quiet()) status("live", "Live");
    redraw();
    fleet();
    switches();
    requests(false);
  }

  function pause(on) {
    paused = on;
    $("pause").setAttribute("aria-pressed", String(on));
    if (on) {
      clearTimeout(timer);
      status("paused", since ? `Paused at ${clock(since)}` : "Paused");
    } else {
      beat();
    }
  }
  $("log").addEventListener("click", () => {
    plots[0].log = !plots[0].log;
    $("log").setAttribute("aria-pressed", String(plots[0].log));
    redraw();
  });
  $("pause").addEventListener("click", () => pause(!paused));
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden && !paused) status("paused", "Paused while this tab is hidden");
    beat();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const plot of plots) plot.shape = null;
    redraw();
  });
  new ResizeObserver(() => redraw()).observe(document.querySelector(".plots"));
  redraw();
  beat();
})();
