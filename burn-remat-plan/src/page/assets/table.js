// What becomes of each value, as a table that sorts by its headings.

const hasStages = data.ops.some((op) => op.stage !== null);
const COLUMNS = [
  { title: "activation", key: (row) => row.name, text: (row) => row.name, className: "name" },
  { title: "stage", key: (row) => row.stage, text: (row) => row.stage, className: "wide" },
  { title: "size", key: (row) => row.bytes, text: (row) => bytesText(row.bytes), className: "number" },
  { title: "decision", key: (row) => row.decision.weight, text: (row) => row.decision.text, className: "" },
  { title: "to bring back", key: (row) => row.cost, text: (row) => timeText(row.cost), className: "number wide" },
  { title: "time added", key: (row) => row.time, text: (row) => (row.time > 0 ? timeText(row.time) : "–"), className: "number wide" },
].filter(({ title }) => title !== "stage" || hasStages);

class Values {
  constructor(highlight, layers) {
    this.highlight = highlight;
    this.layers = layers;
    this.sort = { column: COLUMNS.findIndex(({ title }) => title === "size"), descending: true };
    this.body = document.querySelector("#values tbody");
    const head = element("tr");
    this.headings = COLUMNS.map(({ title, className }, at) => {
      const cell = element("th", className);
      cell.scope = "col";
      const button = element("button", "", title);
      button.type = "button";
      button.addEventListener("click", () => this.sortBy(at));
      cell.append(button);
      head.append(cell);
      return cell;
    });
    document.querySelector("#values thead").append(head);
    for (const id of ["find", "decided", "others"]) byId(id).addEventListener("input", () => this.fill());
    byId("others").closest("label").hidden = data.rows.every((row) => row.is_saved);
    const [count, bytes] = data.rows_left_out;
    byId("rest").textContent = count > 0 ? `Not listed: ${counted(count, "smaller activation", "smaller activations")}, ${bytesText(bytes)} in all.` : "";
  }

  show(view) {
    this.rows = data.rows.map((row, at) => ({
      at,
      isSaved: row.is_saved,
      bytes: row.bytes,
      cost: row.cost,
      name: data.texts[row.name],
      op: opName(row.op),
      stage: opStage(row.op),
      decision: decisionOf(view, at),
      time: view.decisions[at].time,
    }));
    this.fill();
  }

  sortBy(column) {
    const descending = this.sort.column === column ? !this.sort.descending : typeof COLUMNS[column].key(this.rows[0] ?? {}) !== "string";
    this.sort = { column, descending };
    this.fill();
  }

  fill() {
    const { column, descending } = this.sort;
    const sign = descending ? -1 : 1;
    const { key } = COLUMNS[column];
    const wanted = byId("find").value.trim().toLowerCase();
    const shown = this.rows.filter((row) =>
      (row.isSaved || byId("others").checked) &&
      (!byId("decided").checked || row.decision.look !== "kept") &&
      (!wanted || `${row.name} ${row.op} ${row.stage}`.toLowerCase().includes(wanted)));
    const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
    // Rows come largest first, and equal ones stay so.
    shown.sort((a, b) => sign * compare(key(a), key(b)));
    this.headings.forEach((cell, at) => cell.setAttribute("aria-sort", at !== column ? "none" : descending ? "descending" : "ascending"));
    const bytes = shown.reduce((sum, row) => sum + row.bytes, 0);
    const what = byId("others").checked ? ["value", "values"] : ["activation that backward reads", "activations that backward reads"];
    byId("shown").textContent = `${counted(shown.length, ...what)}, ${bytesText(bytes)} in all`;
    this.body.replaceChildren(...shown.map((row) => this.line(row)));
  }

  line(row) {
    const line = element("tr");
    for (const { text, className } of COLUMNS) {
      const cell = element("td", className);
      if (className === "name") this.fillName(cell, row);
      else if (text(row) === row.decision.text) this.fillDecision(cell, row);
      else cell.textContent = text(row);
      line.append(cell);
    }
    line.addEventListener("pointerenter", () => this.highlight(row.at));
    line.addEventListener("pointerleave", () => this.highlight(null));
    return line;
  }

  fillDecision(cell, row) {
    cell.append(element("span", `decision ${row.decision.look}`, row.decision.text));
    if (row.time > 0) cell.append(element("small", "under", `${timeText(row.time)} added`));
  }

  fillName(cell, row) {
    const name = element("div", "named");
    const layer = this.layers().find((layer) => layer.row === row.at);
    if (layer) {
      const swatch = element("span", "swatch");
      swatch.style.background = layer.color;
      name.append(swatch);
    }
    name.append(element("span", "", row.name));
    cell.append(name);
    if (!row.op.startsWith(row.name) && !row.name.startsWith(row.op)) cell.append(element("small", "", row.op));
    if (row.stage) cell.append(element("small", "under", row.stage));
  }
}
