"use strict";
// Draws each figure from the JSON beside it, in the colours of the theme: plotly itself knows no CSS variables.
const themes = JSON.parse(document.getElementById("themes").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)"), print = matchMedia("print");
const touch = matchMedia("(hover: none)");
const PAPER_WIDTH = 640;

function coloured(value) {
  if (typeof value === "string") {
    const name = /^var\((--\w+)\)$/.exec(value);
    return name && themes[name[1]] ? themes[name[1]][dark.matches && !print.matches ? 1 : 0] : value;
  }
  if (Array.isArray(value)) return value.map(coloured);
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([key, inside]) => [key, coloured(inside)]));
  return value;
}

// Parallel coordinates are drawn with WebGL.
const webgl = document.createElement("canvas").getContext("webgl");
for (const place of document.querySelectorAll(".plot#parallel")) if (!webgl) place.closest("figure").remove();

function draw() {
  for (const place of document.querySelectorAll(".plot")) {
    const { data, layout } = coloured(JSON.parse(place.nextElementSibling.textContent));
    // What is zoomed in stays so when only the colours change.
    layout.uirevision = "kept";
    if (print.matches) layout.width = PAPER_WIDTH;
    if (touch.matches) layout.dragmode = false; // there it scrolls the page
    Plotly.react(place, data, layout, {
      responsive: true,
      displaylogo: false,
      displayModeBar: touch.matches ? false : "hover",
      // Plotly's own choice has a button that brings the data to a service of its makers.
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
      showSendToCloud: false,
      plotlyServerURL: "",
      toImageButtonOptions: { filename: place.id, scale: 2 },
    });
  }
}

draw();
for (const changed of [dark, print]) changed.addEventListener("change", draw);
