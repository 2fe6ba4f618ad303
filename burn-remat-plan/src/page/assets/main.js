// Ties the parts together: the slider chooses a plan, and all parts show it.

let layers = makeLayers();
const pictures = [
  new MemoryPicture(byId("without"), "Nothing evicted"),
  new MemoryPicture(byId("planned"), "As planned"),
];
const highlight = (row) => {
  const at = row === null ? -1 : layers.findIndex((layer) => layer.row === row);
  for (const picture of pictures) {
    picture.marked = at < 0 ? null : at;
    picture.point();
  }
};
const values = new Values(highlight, () => layers);
const slider = byId("budget");
const reading = element("output");
let current = { stop: data.stops.length - 1, view: 0, budget: null };

const frontier = new Frontier(byId("frontier"), (stop) => choose(stop));

/** Shows the plan of a budget. */
function choose(stop) {
  const { budget, view } = data.stops[stop];
  show({ stop, view, budget });
}

/** Shows the plan with which the page came. */
function showGiven() {
  const { view, budget } = data.given;
  const { peak } = data.views[view];
  const limit = budget ?? peak;
  const stop = data.stops.findIndex((stop) => stop.budget >= Math.max(limit, peak));
  show({ stop: stop < 0 ? data.stops.length - 1 : stop, view, budget: limit });
}

function show(chosen) {
  current = chosen;
  const { stop, view: at, budget } = chosen;
  const view = data.views[at];
  slider.value = stop;
  reading.textContent = bytesText(budget);
  slider.setAttribute("aria-valuetext", `${bytesText(budget)}, ${percentText(overheadOf(view))} time`);
  frontier.mark(at === data.stops[stop].view ? stop : -1);
  byId("given").disabled = Boolean(data.given) && at === data.given.view;
  const scale = {
    time: Math.max(data.views[0].makespan, view.makespan) || 1,
    bytes: 1.04 * heightFor(budget),
  };
  pictures[0].show(data.views[0], budget, scale, layers);
  pictures[1].show(view, budget, scale, layers);
  fillFacts(view, budget);
  values.show(view);
}

/** What must be in the pictures: all plans, and the budget unless it is far above them. */
function heightFor(budget) {
  const most = Math.max(...data.views.map((view) => view.peak), 1);
  return budget <= 1.5 * most ? Math.max(most, budget) : most;
}

function fillFacts(view, budget) {
  const whole = data.views[0];
  const share = (bytes) => `${Math.round((100 * bytes) / whole.peak)}%`;
  const facts = [
    ["most held", `${bytesText(view.peak)} (${share(view.peak)})`],
    ["budget", `${bytesText(budget)} (${share(budget)})`],
    ["predicted time", timeText(view.makespan)],
    ["time added", `${timeText(Math.max(view.makespan - whole.makespan, 0))} (${percentText(overheadOf(view))})`],
    ["computed again", counted(view.again, "operation", "operations")],
    ["planner", view.planner],
  ];
  byId("facts").replaceChildren(...facts.flatMap(([name, text]) => [element("dt", "", name), element("dd", "", text)]));
}

function fillSummary() {
  const [whole, first] = [data.views[0], data.stops[0]];
  const parts = [["needs ", bytesText(whole.peak)]];
  if (data.given) {
    const view = data.views[data.given.view];
    const budget = data.given.budget ?? view.peak;
    const added = `${percentText(overheadOf(view))} time`;
    if (view.peak <= budget) parts.push([" · fits ", bytesText(budget), ` at ${added}`]);
    else parts.push([" · the plan holds ", bytesText(view.peak), `, over the budget of ${bytesText(budget)}, at ${added}`]);
  }
  const smallest = data.views[first.view];
  if (smallest.peak < whole.peak) {
    parts.push([" · smallest known ", bytesText(smallest.peak), ` at ${percentText(overheadOf(smallest))}`]);
  }
  byId("summary").replaceChildren(...parts.flatMap(([before, number, after]) => [before, element("b", "", number), after ?? ""]));
}

function fillLegend() {
  const isUsed = (at) => data.views.some(({ bins }) => bins.layers[at].length > 0);
  const used = layers.filter((_, at) => isUsed(at));
  const named = (kind) => used.filter((layer) => layer.kind === kind);
  const items = [
    ["activations, early to late", named("activation")],
    ["gradients", named("gradient")],
    ...["input", "constant", "scratch"].map((kind) => [KINDS[kind], named(kind)]),
  ].filter(([, of]) => of.length > 0).map(([name, of]) => {
    const swatch = element("span", "swatch");
    const colors = of.map((layer) => layer.color);
    swatch.style.background = colors.length > 1 ? `linear-gradient(90deg, ${colors[0]}, ${colors[colors.length - 1]})` : colors[0];
    return [swatch, name];
  });
  const again = element("span", "swatch");
  again.style.cssText = "background: var(--again); height: 5px; vertical-align: 2px";
  const budget = element("span", "swatch rule");
  budget.style.color = "var(--budget)";
  items.push([again, "computed again"], [budget, "budget"]);
  document.querySelector("#legend ul").replaceChildren(...items.map(([swatch, name]) => {
    const item = element("li");
    item.append(swatch, name);
    return item;
  }));
}

function redraw() {
  layers = makeLayers();
  fillLegend();
  show(current);
}

byId("name").textContent = data.name ? `“${data.name}”, ${counted(data.ops_in_graph, "operation", "operations")} in the graph` : "";
byId("budget-label").append(reading);
byId("least").textContent = bytesText(data.stops[0].budget);
byId("most").textContent = bytesText(data.stops[data.stops.length - 1].budget);
slider.max = data.stops.length - 1;
slider.addEventListener("input", () => choose(Number(slider.value)));
byId("given").hidden = !data.given;
byId("given").addEventListener("click", showGiven);
fillSummary();
fillLegend();
if (data.given) showGiven();
else choose(Math.floor((data.stops.length - 1) / 2));

let width = innerWidth;
addEventListener("resize", () => {
  // On a phone the height changes whenever its bars come and go.
  if (innerWidth === width) return;
  width = innerWidth;
  pictures.forEach((picture) => picture.draw());
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("scroll", () => showTip(null), { passive: true });
