/**
 * Where a message is written. Enter sends, Shift+Enter breaks the line, and Enter that only confirms a word of an
 * input method never sends. The draft is kept at every keystroke.
 */
import * as api from "pagoda/api.js";
import { openAttempts } from "pagoda/conversation.js";
import { draftOf, keepDraft } from "pagoda/drafts.js";
import { PgIcon } from "pagoda/icons.js";
import { send } from "pagoda/outbox.js";
import { happenings, onScreen, session } from "pagoda/session.js";
import { number, t } from "pagoda/words.js";

const IME_PROCESSING = 229; // the keyCode Safari reports for an Enter that ends a composition, after isComposing is false

export default {
  components: { PgIcon },
  props: { limit: Number },
  template: `
    <form class="pg-composer" @submit.prevent="submit">
      <div class="pg-field">
        <textarea ref="field" v-model="text" rows="1" dir="auto" enterkeyhint="send" autocomplete="off"
                  :placeholder="t('composer.placeholder')" :aria-label="t('composer.label')"
                  :aria-invalid="tooLong" aria-describedby="pg-composer-hint" @keydown.enter="enter" @input="typed"></textarea>
        <button v-if="running && !text.trim()" type="button" class="pg-send stop" :aria-label="t('action.stop')"
                :title="t('action.stop')" :disabled="stopping === running.id" @click="stop"><pg-icon name="stop" /></button>
        <button v-else type="submit" class="pg-send" :aria-label="t('action.send')" :title="t('action.send')"
                :disabled="!sendable"><pg-icon name="send" /></button>
      </div>
      <p id="pg-composer-hint" class="pg-hint" :class="{warn: tooLong}">
        {{ tooLong ? t('composer.too_long', {count: number(text.length), limit: number(limit)}) : t('composer.hint') }}
      </p>
    </form>`,
  data: () => ({ text: "", stopping: null }),
  computed: {
    conversation: () => onScreen.value,
    running() {
      return openAttempts(this.conversation)[0] ?? null;
    },
    tooLong() {
      return this.text.length > this.limit;
    },
    sendable() {
      return this.text.trim() !== "" && !this.tooLong && !this.conversation.missing;
    },
  },
  mounted() {
    happenings.addEventListener("open", this.takeDraft);
    happenings.addEventListener("compose", (event) => this.put(event.detail));
    this.takeDraft();
    // On a phone the keyboard would cover what the person came to read.
    if (matchMedia("(hover: hover)").matches) this.$refs.field.focus({ preventScroll: true });
  },
  methods: {
    t,
    number,
    /** @param {KeyboardEvent} event */
    enter(event) {
      if (event.isComposing || event.keyCode === IME_PROCESSING || event.shiftKey || event.altKey) return;
      event.preventDefault();
      this.submit();
    },
    submit() {
      if (!this.sendable) return;
      const text = this.text.trim();
      this.text = "";
      this.typed();
      send(this.conversation, text);
    },
    async stop() {
      this.stopping = this.running.id;
      try {
        await api.stop(this.stopping);
      } catch (error) {
        session.notice = error.message;
      }
      this.stopping = null;
    },
    typed() {
      keepDraft(this.conversation.id, this.text);
      this.$nextTick(this.fit);
    },
    takeDraft() {
      this.text = draftOf(this.conversation.id);
      this.$nextTick(this.fit);
    },
    /** @param {string | null} text null: only put the cursor here */
    put(text) {
      if (text !== null) {
        this.text = text;
        this.typed();
      }
      this.$refs.field.focus();
    },
    fit() {
      const field = this.$refs.field;
      if (!field) return;
      field.style.height = "auto";
      field.style.height = `${field.scrollHeight}px`;
    },
  },
};
