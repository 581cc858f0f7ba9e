/**
 * Telling a person who looks elsewhere: how many replies are finished and unread, in the tab's title, and for whom
 * asked for it a notification when one ends while the page is hidden.
 */
import { reactive, watch } from "vue";
import { session } from "pagoda/session.js";
import { t, titleOf } from "pagoda/words.js";

const STORED = "pagoda.notify";

export const telling = reactive({ wanted: localStorage.getItem(STORED) === "on" });

/** Whether this browser could show one, and the person has not forbidden it. */
export const canTell = () => "Notification" in window && Notification.permission !== "denied";

/** The person wants to be told, or not any more. */
export async function wantToBeTold(wanted) {
  if (wanted && (await Notification.requestPermission()) !== "granted") {
    session.notice = t("notify.denied");
    return;
  }
  telling.wanted = wanted;
  if (wanted) localStorage.setItem(STORED, "on");
  else localStorage.removeItem(STORED);
}

/** @returns {number} replies that ended and were not seen */
export const unseenReplies = () => session.rows.filter((row) => row.unread && !row.running).length;

let running = new Set();

watch(
  () => session.rows.map((row) => `${row.id} ${row.running}`).join(),
  () => {
    const ended = session.rows.filter((row) => !row.running && running.has(row.id));
    running = new Set(session.rows.filter((row) => row.running).map((row) => row.id));
    if (!telling.wanted || !document.hidden || !canTell()) return;
    for (const row of ended) tell(row);
  },
);

function tell(row) {
  // The tag makes one notification of those that several tabs would show.
  const note = new Notification(titleOf(row.title), { body: t(row.failed ? "notify.failed" : "notify.done"), tag: row.id });
  note.onclick = () => {
    window.focus();
    note.close();
  };
}
