/**
 * The keyboard: what the shortcuts are, the sheet that lists them, and which key sends. Nothing here acts while an
 * input method composes, and single letters never act while somebody writes.
 */
import { reactive } from "vue";
import { PgIcon } from "pagoda/icons.js";
import { compose, go, onScreen, session } from "pagoda/session.js";
import { t } from "pagoda/words.js";

const STORED = "pagoda.enter";
const apple = /Mac|iP(hone|ad)/.test(navigator.platform);
const command = apple ? "⌘" : "Ctrl";

// A keyboard on glass has no Shift+Enter worth the name: there Enter breaks the line unless the person says otherwise.
const onGlass = matchMedia("(pointer: coarse)").matches && !matchMedia("(any-pointer: fine)").matches;

/**
 * `enter`: "plain" where Enter sends and Shift+Enter breaks the line, "command" where it takes Ctrl or ⌘ to send, "button"
 * where only the button does.
 */
export const sending = reactive({ enter: localStorage.getItem(STORED) ?? (onGlass ? "button" : "plain") });

/** @param {"plain" | "command" | "button"} choice */
export function setSending(choice) {
  sending.enter = choice;
  localStorage.setItem(STORED, choice);
}

/** What a person reads below the composer. */
export const hint = () => t(HINTS[sending.enter], { command });

const HINTS = { plain: "composer.hint", command: "composer.hint_command", button: "composer.hint_button" };

/** @param {KeyboardEvent} event of an Enter @returns {boolean} */
export function sends(event) {
  if (sending.enter !== "plain") return event.ctrlKey || event.metaKey;
  return !event.shiftKey && !event.altKey;
}

const ACTIONS = [
  { name: "new", keys: [command, apple ? "⇧" : "Shift", "O"], when: (e) => commanded(e) && e.shiftKey && letter(e, "o"), act: () => (go(null), compose(null)) },
  { name: "search", keys: [command, "K"], when: (e) => commanded(e) && !e.shiftKey && letter(e, "k"), act: search },
  { name: "stop", keys: ["Esc"], when: (e) => e.key === "Escape" && !e.shiftKey && !open() && !elsewhere(e), act: () => press(".pg-composer .pg-send.stop, .pg-stop-run") },
  { name: "previous", keys: ["Alt", "↑"], when: (e) => e.altKey && e.key === "ArrowUp", act: () => step(-1) },
  { name: "next", keys: ["Alt", "↓"], when: (e) => e.altKey && e.key === "ArrowDown", act: () => step(1) },
  { name: "edit", keys: ["↑"], when: (e) => e.key === "ArrowUp" && bare(e) && emptyComposer(e), act: () => press(".pg-prompt [data-action=edit]") },
  { name: "composer", keys: [apple ? "⇧" : "Shift", "Esc"], when: (e) => e.key === "Escape" && e.shiftKey, act: () => (compose(null), true) },
  { name: "sheet", keys: ["?"], when: (e) => e.key === "?" && !writing(e) && !open(), act: () => (document.getElementById("pg-keys").showModal(), true) },
];

// The letter on the key where the layout has one there, the place of the key where it has none (Cyrillic, Greek).
const letter = (event, name) => (/^[a-z]$/i.test(event.key) ? event.key.toLowerCase() === name : event.code === `Key${name.toUpperCase()}`);
const commanded = (event) => (apple ? event.metaKey : event.ctrlKey) && !event.altKey;
const bare = (event) => !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
const writing = (event) => event.target.closest?.("input, textarea, select, [contenteditable]");
// There Escape means to leave a search, a new name or an edit, not to end a reply.
const elsewhere = (event) => event.target.closest?.(".pg-drawer") || (writing(event) && !event.target.closest(".pg-composer"));
const emptyComposer = (event) => event.target.matches?.(".pg-composer textarea") && event.target.value === "";
const open = () => document.querySelector("dialog[open], [popover]:popover-open");

function press(selector) {
  const button = [...document.querySelectorAll(selector)].at(-1);
  button?.click();
  return Boolean(button);
}

function search() {
  const field = document.querySelector(".pg-drawer input[type=search]");
  session.drawer = true; // on a narrow screen it is out of sight
  setTimeout(() => field?.select()); // the drawer puts the focus on its own first button
  return Boolean(field);
}

function step(by) {
  const links = [...document.querySelectorAll('.pg-drawer a[href^="/c/"]')];
  const at = links.findIndex((link) => link.getAttribute("href") === `/c/${onScreen.value.id}`);
  const link = links[at < 0 ? (by > 0 ? 0 : -1) : at + by];
  link?.click();
  return true;
}

addEventListener("keydown", (event) => {
  if (event.isComposing || event.keyCode === 229 || event.defaultPrevented) return;
  const action = ACTIONS.find((other) => other.when(event));
  if (action && action.act() !== false) event.preventDefault();
});

/** The sheet, and the button that opens it. */
export const PgKeys = {
  components: { PgIcon },
  template: `
    <button type="button" class="pg-keys-button" :aria-label="t('keys.title')" :title="t('keys.title')" @click="$refs.sheet.showModal()">?</button>
    <dialog id="pg-keys" ref="sheet" class="pg-dialog pg-keys" :aria-label="t('keys.title')" @click.self="$refs.sheet.close()">
      <h2>{{ t('keys.title') }}</h2>
      <dl>
        <template v-for="action in actions">
          <dt>{{ t('keys.' + action.name) }}</dt>
          <dd><kbd v-for="key in action.keys">{{ key }}</kbd></dd>
        </template>
      </dl>
      <label>{{ t('keys.sending') }}
        <select :value="sending.enter" @change="setSending($event.target.value)">
          <option v-for="(key, choice) in hints" :value="choice">{{ t(key, {command}) }}</option>
        </select>
      </label>
      <div class="pg-dialog-actions"><button type="button" class="pg-button" @click="$refs.sheet.close()">{{ t('details.close') }}</button></div>
    </dialog>`,
  data: () => ({ actions: ACTIONS, sending, command, hints: HINTS }),
  methods: { t, setSending },
};
