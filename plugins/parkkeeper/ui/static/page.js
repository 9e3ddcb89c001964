// The frame's style follows Airflow's own switch between light and dark; the namespace is shown as soon as it is chosen.
"use strict";

function follow(root) {
  const apply = () => {
    const dark = root.classList.contains("dark");
    const light = root.classList.contains("light");
    document.documentElement.dataset.theme = dark ? "dark" : light ? "light" : "";
  };
  new MutationObserver(apply).observe(root, { attributes: true, attributeFilter: ["class"] });
  apply();
}

if (window.parent !== window) {
  try {
    follow(window.parent.document.documentElement);
  } catch (error) {
    if (error.name !== "SecurityError") throw error; // Another site's frame: the system's preference holds.
  }
}

document.addEventListener("DOMContentLoaded", () => {
  const select = document.getElementById("namespace");
  if (!select) return;
  select.form.classList.add("scripted");
  select.addEventListener("change", () => select.form.submit());
});
