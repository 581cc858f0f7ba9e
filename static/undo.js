/** What was deleted a moment ago, and the way back: a line at the foot of the conversation that goes away by itself. */
import { reactive } from "vue";
import { session } from "pagoda/session.js";
import { t } from "pagoda/words.js";

const SHOWN_MS = 12_000; // the server keeps what was deleted for two minutes; the line is there for a slip of the hand

const undo = reactive({ key: null, values: {}, back: null });
let timer = null;

/**
 * @param {string} key of the sentence that says what was deleted
 * @param {Record<string, string>} values
 * @param {() => Promise<unknown>} back
 */
export function offerUndo(key, values, back) {
  Object.assign(undo, { key, values, back });
  wait();
}

function wait() {
  clearTimeout(timer);
  timer = setTimeout(() => (undo.key = null), SHOWN_MS);
}

export const PgUndo = {
  template: `
    <div class="pg-undo-place" role="status">
      <div v-if="undo.key" class="pg-undo" @mouseenter="hold" @mouseleave="wait" @focusin="hold" @focusout="wait">
        <span dir="auto">{{ t(undo.key, undo.values) }}</span>
        <button type="button" class="pg-button" @click="goBack">{{ t('action.undo') }}</button>
      </div>
    </div>`,
  data: () => ({ undo }),
  methods: {
    t,
    wait,
    hold() {
      clearTimeout(timer);
    },
    async goBack() {
      undo.key = null;
      try {
        await undo.back();
      } catch (error) {
        session.notice = error.message;
      }
    },
  },
};
