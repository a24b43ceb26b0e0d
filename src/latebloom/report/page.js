// Draws the charts in the light or dark theme, and runs the theme button, the search and the copy buttons.
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

async function draw(element) {
  const dark = isDark();
  const spec = { ...data.charts[element.id], config: data.config[dark ? "dark" : "light"] };
  await vegaEmbed(element, spec, {
    renderer: "svg",
    actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false },
    downloadFileName: element.id,
    tooltip: { theme: dark ? "dark" : "light" },
  });
  element.dataset.drawn = dark ? "dark" : "light";
}

// A chart in a closed <details> has no width; it is drawn when that is opened.
const visible = (element) => !element.closest("details:not([open]):has(.chart)");
async function drawAll() {
  const theme = isDark() ? "dark" : "light";
  for (const element of document.querySelectorAll(".chart")) {
    if (visible(element) && element.dataset.drawn !== theme) await draw(element);
  }
  root.dataset.drawn = theme;
}
for (const part of document.querySelectorAll("details.more")) part.addEventListener("toggle", drawAll);

const toggle = document.getElementById("theme");
function label() {
  toggle.textContent = isDark() ? "Light" : "Dark";
  toggle.setAttribute("aria-label", isDark() ? "Use the light theme" : "Use the dark theme");
}
toggle.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  label();
  drawAll();
});
system.addEventListener("change", () => { label(); drawAll(); });
label();

const search = document.getElementById("search");
if (search) {
  const runs = [...document.querySelectorAll(".run")].map((run) => [run, run.textContent.toLowerCase()]);
  const count = document.getElementById("count");
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [run, text] of runs) {
      run.hidden = !words.every((word) => text.includes(word));
      shown += !run.hidden;
    }
    count.textContent = `${shown} of ${runs.length} runs`;
  };
  search.addEventListener("input", filter);
  filter();
}

// A configuration that is part of the command is shown, indented, when its run is opened.
for (const run of document.querySelectorAll("details.run")) {
  run.addEventListener("toggle", () => {
    const config = run.querySelector("pre.config");
    if (config.textContent || config.dataset.from === undefined) return;
    const command = [...run.querySelector("pre.command").textContent]; // as Python counts characters
    const text = command.slice(config.dataset.from, config.dataset.to).join("");
    config.textContent = JSON.stringify(JSON.parse(text), null, 2);
  });
}

for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const text = button.nextElementSibling;
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text); // there is no clipboard: select the text so that the keyboard can copy it
    }
  });
}

drawAll();
