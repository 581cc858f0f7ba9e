/**
 * Where a message is written. Enter sends, Shift+Enter breaks the line (or as the person set it), and Enter that only
 * confirms a word of an input method never sends. The draft is kept at every keystroke. Text files can be dropped.
 */
import * as api from "pagoda/api.js";
import { openAttempts } from "pagoda/conversation.js";
import { draftOf, isUnkept, keepDraft } from "pagoda/drafts.js";
import { readTexts, tooLongToPaste, withFiles } from "pagoda/files.js";
import { PgIcon } from "pagoda/icons.js";
import { hint, PgKeys, sending, sends } from "pagoda/keys.js";
import { send } from "pagoda/outbox.js";
import { happenings, onScreen, session } from "pagoda/session.js";
import { bytes, number, t } from "pagoda/words.js";

const IME_PROCESSING = 229; // the keyCode Safari reports for an Enter that ends a composition, after isComposing is false
const TALL = 20_000; // characters that need more room than there is: to measure how much would take longer than to type

export default {
  components: { PgIcon, PgKeys },
  props: { limit: Number },
  template: `
    <form class="pg-composer" :class="{dropping}" @submit.prevent="submit" @dragover.prevent="dropping = true"
          @dragleave="dropping = false" @drop.prevent="take($event.dataTransfer.files)">
      <ul v-if="files.length" class="pg-files" :aria-label="t('files.label')">
        <li v-for="(file, index) in files">
          <span dir="auto">{{ file.name }}</span> <small>{{ bytes(file.size) }}</small>
          <button type="button" class="pg-tool" :aria-label="t('files.remove', {name: file.name})" @click="files.splice(index, 1)"><pg-icon name="close" /></button>
        </li>
      </ul>
      <div class="pg-field">
        <textarea ref="field" v-model="text" rows="1" dir="auto" :enterkeyhint="sending.enter === 'plain' ? 'send' : 'enter'" autocomplete="off"
                  :placeholder="t('composer.placeholder')" :aria-label="t('composer.label')"
                  :aria-invalid="tooLong" aria-describedby="pg-composer-hint" @keydown.enter="enter" @input="typed"
                  @paste="pasted"></textarea>
        <button v-if="running && whole === ''" type="button" class="pg-send stop" :aria-label="t('action.stop')"
                :title="t('action.stop')" :disabled="stopping === running.id" @click="stop"><pg-icon name="stop" /></button>
        <button v-else type="submit" class="pg-send" :aria-label="t('action.send')" :title="t('action.send')"
                :disabled="!sendable"><pg-icon name="send" /></button>
      </div>
      <div class="pg-hint" :class="{warn: warnings.length}">
        <span id="pg-composer-hint">{{ warnings.join(" ") || hint() }}</span>
        <pg-keys />
      </div>
    </form>`,
  data: () => ({ sending, text: "", stopping: null, files: [], refused: null, dropping: false, unkept: false }),
  computed: {
    conversation: () => onScreen.value,
    running() {
      return openAttempts(this.conversation)[0] ?? null;
    },
    whole() {
      return withFiles(this.text.trim(), this.files);
    },
    tooLong() {
      return this.whole.length > this.limit;
    },
    warnings() {
      const limits = { count: number(this.whole.length), limit: number(this.limit) };
      return [
        this.refused ?? (this.tooLong ? t("composer.too_long", limits) : null),
        this.unkept ? t("composer.unkept") : null,
      ].filter(Boolean);
    },
    sendable() {
      return this.whole !== "" && !this.tooLong && !this.conversation.missing;
    },
  },
  mounted() {
    happenings.addEventListener("open", this.takeDraft);
    happenings.addEventListener("compose", (event) => this.put(event.detail));
    this.takeDraft();
    session.limit = this.limit;
    // On a phone the keyboard would cover what the person came to read.
    if (matchMedia("(hover: hover)").matches) this.$refs.field.focus({ preventScroll: true });
  },
  methods: {
    t,
    number,
    bytes,
    hint,
    /** @param {KeyboardEvent} event */
    enter(event) {
      if (event.isComposing || event.keyCode === IME_PROCESSING || !sends(event)) return;
      event.preventDefault();
      this.submit();
    },
    submit() {
      if (!this.sendable) return;
      const text = this.whole;
      this.text = "";
      this.files = [];
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
    async take(files) {
      this.dropping = false;
      const { attached, refused } = await readTexts(files, this.limit);
      this.files.push(...attached);
      this.refused = refused;
      this.$refs.field.focus();
    },
    pasted(event) {
      if (event.clipboardData.files.length) {
        event.preventDefault();
        this.take(event.clipboardData.files);
      } else this.refused = tooLongToPaste(event, this.limit); // other words go into the field by themselves
    },
    typed() {
      this.refused = null;
      keepDraft(this.conversation.id, this.text);
      this.unkept = isUnkept(this.conversation.id);
      this.$nextTick(this.fit);
    },
    takeDraft() {
      this.text = draftOf(this.conversation.id);
      this.unkept = isUnkept(this.conversation.id);
      if (this.conversation !== this.filesOf) this.files = []; // a new chat that got its id is the same one
      this.filesOf = this.conversation;
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
      field.style.height = this.text.length > TALL ? "100dvh" : "auto"; // the style sheet says how tall it may be at most
      if (this.text.length <= TALL) field.style.height = `${field.scrollHeight}px`;
    },
  },
};
