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

// Of many runs, the details are packed; those that match the search are shown, some at a time.
const MOST_SHOWN = 100;
const unpack = async () => {
  const text = document.getElementById("packed").textContent;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
};
const search = document.getElementById("search");
if (search) {
  const there = [...document.querySelectorAll(".run")].map((run) => [run, run.textContent.toLowerCase()]);
  const count = document.getElementById("count"), place = document.getElementById("more-runs");
  let packed = null;
  const filter = async () => {
    if (place) packed ??= (await unpack()).map((html) => [html, html.toLowerCase()]);
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (text) => words.every((word) => text.includes(word));
    for (const [run, text] of there) run.hidden = !matches(text);
    const found = (packed ?? []).filter(([, text]) => matches(text));
    if (place) place.innerHTML = found.slice(0, MOST_SHOWN).map(([html]) => html).join(""); // escaped where it was made
    const shown = there.filter(([run]) => !run.hidden).length + found.length;
    const rest = found.length > MOST_SHOWN ? `; the first ${MOST_SHOWN} are shown` : "";
    count.textContent = `${shown} of ${there.length + (packed ?? []).length} runs${rest}`;
  };
  search.addEventListener("input", filter);
  filter();
}

// A configuration that is part of the command is shown, indented, when its run is opened.
document.addEventListener("toggle", (event) => {
  const config = event.target.matches("details.run") && event.target.querySelector("pre.config");
  if (!config || config.textContent || config.dataset.from === undefined) return;
  const command = [...event.target.querySelector("pre.command").textContent]; // as Python counts characters
  const text = command.slice(config.dataset.from, config.dataset.to).join("");
  config.textContent = JSON.stringify(JSON.parse(text), null, 2);
}, true);

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const text = button.nextElementSibling;
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(text); // there is no clipboard: select the text so that the keyboard can copy it
  }
});

drawAll();
