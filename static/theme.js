/**
 * Light or dark: what the system says, unless the person chose. The first paint is set by a line in the page's head
 * (ui/page.py), so nothing flashes; this module follows later changes.
 */
import { reactive } from "vue";

const STORED = "pagoda.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export const theme = reactive({ choice: localStorage.getItem(STORED) ?? "system" });
export const choices = ["system", "light", "dark"];

/** @param {"system" | "light" | "dark"} choice */
export function setTheme(choice) {
  theme.choice = choice;
  localStorage.setItem(STORED, choice);
  apply();
}

function apply() {
  const dark = theme.choice === "dark" || (theme.choice === "system" && system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

addEventListener("storage", (event) => {
  if (event.key !== STORED) return; // another tab has chosen
  theme.choice = event.newValue ?? "system";
  apply();
});
system.addEventListener("change", apply);
apply();
