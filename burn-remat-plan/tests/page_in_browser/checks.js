// Uses the page in a frame as a reader would, and reports what it finds to the test.
"use strict";

const failures = [];
const frame = document.querySelector("iframe");
const check = (is, what) => is || failures.push(what);
const settled = () => new Promise((resolve) => setTimeout(resolve, 50));

function load(width, height) {
  return new Promise((resolve) => {
    Object.assign(frame, { width, height });
    frame.onload = () => resolve(frame.contentWindow);
    frame.src = `/page?${width}`;
  });
}

const inked = (canvas) => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const colors = new Set();
  let sum = 0;
  for (let at = 0; at < pixels.length; at += 4) {
    const color = (pixels[at] << 16) | (pixels[at + 1] << 8) | pixels[at + 2];
    colors.add(color);
    sum = (sum * 31 + color) % 4294967291;
  }
  return { colors: colors.size, sum };
};

const key = (page, target, name) => target.dispatchEvent(new page.KeyboardEvent("keydown", { key: name, bubbles: true }));

async function pictures(page, say) {
  const document = page.document;
  const canvases = [...document.querySelectorAll(".plot canvas:first-child")];
  check(canvases.length === 2, say("two pictures"));
  for (const canvas of canvases) {
    check(inked(canvas).colors > 10, say("a picture has bands of many colours"));
    const box = canvas.getBoundingClientRect();
    const at = { clientX: box.left + box.width * 0.5, clientY: box.top + box.height * 0.6, bubbles: true };
    canvas.dispatchEvent(new page.PointerEvent("pointermove", at));
    const tip = document.getElementById("tip");
    check(!tip.hidden && /held/.test(tip.textContent) && /made by|constants|inputs|other/.test(tip.textContent), say(`the tooltip says: ${tip.textContent}`));
    const { left, right, top } = tip.getBoundingClientRect();
    check(left >= 0 && right <= page.innerWidth && top >= 0, say("the tooltip is on the page"));
    canvas.dispatchEvent(new page.PointerEvent("pointerleave", at));
    check(tip.hidden, say("the tooltip disappears when the pointer leaves"));
    canvas.focus();
    key(page, canvas, "ArrowRight");
    key(page, canvas, "ArrowUp");
    const spoken = document.getElementById("announcer").textContent;
    check(/held/.test(spoken), say(`the arrow keys are announced: ${spoken}`));
    canvas.blur();
  }
}

async function slider(page, say) {
  const document = page.document;
  const budget = document.getElementById("budget");
  const canvas = document.querySelector("#planned canvas");
  const times = [];
  const looks = new Set();
  const toNumber = (text) => Number(text.match(/[+−]([\d.,]+)%/)[1].replace(",", "")) * (text.includes("−") ? -1 : 1);
  for (let stop = 0; stop <= Number(budget.max); stop += 1) {
    budget.value = stop;
    budget.dispatchEvent(new page.Event("input", { bubbles: true }));
    await settled();
    const told = budget.getAttribute("aria-valuetext");
    times.push(toNumber(told));
    looks.add(inked(canvas).sum);
    check(document.querySelector("#budget-label output").textContent === told.split(",")[0], say("the label shows the budget"));
  }
  check(times.length >= 4 && looks.size >= 3, say(`the pictures follow the slider: ${looks.size} of ${times.length}`));
  check(times.every((time, at) => at === 0 || time <= times[at - 1]), say(`a larger budget costs no more: ${times}`));
  const given = document.getElementById("given");
  given.click();
  check(given.disabled, say("one click leads back to the given plan"));
}

async function table(page, say) {
  const document = page.document;
  const sizes = () => [...document.querySelectorAll("#values tbody tr")].map((row) => row.children[row.children.length - 4].textContent);
  const heading = [...document.querySelectorAll("#values th")].find((cell) => cell.textContent.startsWith("size"));
  check(heading.getAttribute("aria-sort") === "descending", say("the largest come first"));
  const before = sizes();
  check(before.length > 3 && /bytes|iB/.test(before[0]), say(`the table has sizes: ${before.slice(0, 3)}`));
  heading.querySelector("button").click();
  const after = sizes();
  check(heading.getAttribute("aria-sort") === "ascending" && after[0] === before[before.length - 1], say("a heading sorts the other way"));
  const find = document.getElementById("find");
  find.value = "no such name at all";
  find.dispatchEvent(new page.Event("input", { bubbles: true }));
  check(sizes().length === 0, say("the search shows only rows that match"));
}

async function run() {
  for (const [width, height] of [[1400, 900], [390, 844]]) {
    const say = (what) => `${width}x${height}: ${what}`;
    const page = await load(width, height);
    await settled();
    check(page.document.querySelector("#facts dd"), say("the script finished"));
    check(page.document.documentElement.scrollWidth <= width, say("nothing sticks out to the side"));
    await pictures(page, say);
    await slider(page, say);
    await table(page, say);
    await settled();
    failures.push(...page.troubles.map(say));
  }
}

run()
  .catch((error) => failures.push(`${error} ${error.stack}`))
  .then(() => fetch("/result", { method: "POST", body: JSON.stringify(failures) }));
