/**
 * Every word on the page, in the language the person chose or the browser asks for.
 * The server puts both languages into the page (ui/strings/*.toml), so switching needs no reload.
 */
import { reactive } from "vue";
import { plain } from "pagoda/unseen.js";

const STORED = "pagoda.language";
const words = JSON.parse(document.getElementById("pagoda-words").textContent);

export const language = reactive({ code: preferred() });
apply();

/** The languages on offer, each with its own name. */
export const languages = Object.keys(words).map((code) => ({ code, name: words[code]["language.name"] }));

function preferred() {
  const stored = localStorage.getItem(STORED);
  if (stored in words) return stored;
  const wanted = (navigator.languages ?? [navigator.language]).find((tag) => tag.split("-")[0] in words);
  return wanted ? wanted.split("-")[0] : "en";
}

function apply() {
  document.documentElement.lang = words[language.code]["language.tag"];
}

// Another tab has chosen another language.
addEventListener("storage", (event) => {
  if (event.key !== STORED) return;
  language.code = preferred();
  apply();
});

/** @param {string} code */
export function setLanguage(code) {
  language.code = code;
  localStorage.setItem(STORED, code);
  apply();
}

/**
 * The sentence behind `key`, with {names} filled in.
 * @param {string} key
 * @param {Record<string, string | number>} [values]
 */
export function t(key, values = {}) {
  const sentence = words[language.code][key] ?? words.en[key] ?? key;
  return sentence.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? plain(String(values[name])) : whole));
}

/** A conversation's title as it is shown: one that nobody named yet has its name in the page's language. */
export const titleOf = (title) => (title && title !== words.en["sidebar.new"] ? plain(title) : t("sidebar.new"));

/** Whether there is a sentence for `key`: words that come from the engine may be newer than this page. */
export const has = (key) => key in words.en;

/** @param {number} value @param {number} [digits] the most digits after the point */
export function number(value, digits = 0) {
  return new Intl.NumberFormat(words[language.code]["language.tag"], { maximumFractionDigits: digits }).format(value);
}

/** Bytes as a person says them: 960 kB, 41 MB, 9.4 GB (powers of ten, like disks are sold). */
export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = count;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${number(value, value < 10 && unit > 1 ? 1 : 0)} ${units[unit]}`;
}

/** Seconds as 52 ms, 0.42 s, 8.1 s, 4 min 12 s, 2 h 05 min. */
export function duration(seconds) {
  if (seconds < 0.1) return t("time.milliseconds", { milliseconds: number(seconds * 1000, seconds < 0.01 ? 1 : 0) });
  if (seconds < 60) return t("time.seconds", { seconds: number(seconds, seconds < 1 ? 2 : 1) });
  return clock(seconds);
}

/** Whole seconds, for a figure that ticks: 8 s, 4 min 12 s, 2 h 05 min. */
export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return t("time.seconds", { seconds: whole });
  const pad = (value) => String(value).padStart(2, "0");
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return t("time.minutes", { minutes, seconds: pad(whole % 60) });
  return t("time.hours", { hours: Math.floor(minutes / 60), minutes: pad(minutes % 60) });
}

/** From the shorter to the longer: 20–30 s, 8–11 min, 2–3 h; one figure where both round to it. */
export function range(low, high) {
  const [unit, size] = high < 100 ? ["seconds", 1] : high < 6000 ? ["minutes", 60] : ["hours", 3600];
  const digits = high / size < 3 && size > 1 ? 1 : 0;
  const [from, to] = [low, high].map((value) => number(Math.max(value / size, digits ? 0.1 : 1), digits));
  return from === to ? t(`range.about_${unit}`, { about: to }) : t(`range.${unit}`, { from, to });
}
