/**
 * One message of the person: there at once, marked while it is on its way, red with Retry when it did not arrive.
 * Editing it begins another branch; ‹1/2› goes from one to the other. Deleting takes its reply along, with Undo.
 */
import * as api from "pagoda/api.js";
import { copy } from "pagoda/clipboard.js";
import { tooLongToPaste } from "pagoda/files.js";
import { PgIcon } from "pagoda/icons.js";
import { newId } from "pagoda/identity.js";
import { resend, withdraw } from "pagoda/outbox.js";
import { compose, onScreen, session } from "pagoda/session.js";
import { offerUndo } from "pagoda/undo.js";
import { t } from "pagoda/words.js";

export const PgPrompt = {
  components: { PgIcon },
  props: { message: Object },
  template: `
    <article class="pg-prompt" :class="{failed: message.error, sending: (message.id === null || edited !== null) && !message.error, editing}"
             :aria-label="t('transcript.you')" :data-message="message.id" :data-request="message.request_id">
      <form v-if="editing" class="pg-edit" @submit.prevent="submit">
        <textarea ref="field" v-model="draft" rows="1" dir="auto" :aria-label="t('prompt.edited')" @input="fit" @paste="pasted"
                  @keydown.enter="enter" @keydown.esc.stop="cancel"></textarea>
        <p>{{ t('prompt.edit_note') }}</p>
        <div class="pg-edit-actions">
          <button type="button" class="pg-button" @click="cancel">{{ t('action.withdraw') }}</button>
          <button class="pg-button accent" :disabled="!draft.trim()">{{ t('action.send') }}</button>
        </div>
      </form>
      <div v-else class="pg-bubble" dir="auto">{{ edited ?? message.text }}</div>
      <div v-if="waits" class="pg-waits">
        <span role="status">{{ t('composer.will_send') }}</span>
        <button type="button" class="pg-button quiet" @click="takeBack">{{ t('action.edit') }}</button>
      </div>
      <div v-if="message.error" class="pg-failed" role="alert">
        <span>{{ message.error }}</span>
        <button type="button" class="pg-button" @click="retry">{{ t('action.retry') }}</button>
        <button type="button" class="pg-button quiet" @click="takeBack">{{ t('action.edit') }}</button>
      </div>
      <footer v-else-if="message.id !== null && !editing" class="pg-prompt-foot">
        <span class="pg-prompt-tools">
          <button type="button" class="pg-tool" :aria-label="t('prompt.copy')" :title="t('action.copy')" @click="copyText">
            <pg-icon :name="copied ? 'done' : 'copy'" /></button>
          <button ref="edit" data-action="edit" type="button" class="pg-tool" :aria-label="t('prompt.edit')" :title="t('action.edit')"
                  :disabled="edited !== null" @click="edit"><pg-icon name="pencil" /></button>
          <button type="button" class="pg-tool" :aria-label="t('prompt.delete')" :title="t('action.delete')"
                  :disabled="edited !== null" @click="remove"><pg-icon name="bin" /></button>
        </span>
        <div class="pg-versions" v-if="versions.length > 1" role="group" :aria-label="t('prompt.versions')">
          <button type="button" class="pg-tool" :aria-label="t('prompt.previous')" :disabled="position === 0"
                  @click="choose(position - 1)"><pg-icon name="previous" /></button>
          <span>{{ position + 1 }}/{{ versions.length }}</span>
          <button type="button" class="pg-tool" :aria-label="t('prompt.next')" :disabled="position === versions.length - 1"
                  @click="choose(position + 1)"><pg-icon name="next" /></button>
        </div>
      </footer>
    </article>`,
  data: () => ({ editing: false, draft: "", edited: null, requestId: null, copied: false }),
  computed: {
    versions() {
      return this.message.versions ?? [];
    },
    position() {
      return this.versions.indexOf(this.message.id);
    },
    waits() {
      return this.message.id === null && !this.message.error && !session.connected;
    },
  },
  methods: {
    t,
    retry() {
      resend(onScreen.value, this.message.request_id);
    },
    takeBack() {
      compose(withdraw(onScreen.value, this.message.request_id));
    },
    async copyText() {
      this.copied = await copy(this.message.text);
      if (this.copied) setTimeout(() => (this.copied = false), 1500);
    },
    edit() {
      this.draft = this.message.text;
      this.requestId = newId();
      this.open();
    },
    open() {
      this.editing = true;
      this.$nextTick(() => {
        this.fit();
        this.$refs.field.focus();
      });
    },
    cancel() {
      this.editing = false;
      this.$nextTick(() => this.$refs.edit?.focus({ preventScroll: true }));
    },
    /** @param {KeyboardEvent} event */
    enter(event) {
      if (event.isComposing || event.keyCode === 229 || event.shiftKey || event.altKey) return;
      event.preventDefault();
      this.submit();
    },
    pasted(event) {
      session.notice = tooLongToPaste(event, session.limit);
    },
    async submit() {
      if (!this.draft.trim() || this.edited !== null) return; // a double Enter is one message
      this.editing = false;
      this.edited = this.draft.trim(); // shown at once; the branch that comes from the server takes this place
      session.notice = null;
      try {
        await api.editMessage(this.message.id, this.requestId, this.edited);
      } catch (error) {
        session.notice = error.message;
        this.open();
      }
      this.edited = null;
    },
    async remove() {
      const { id } = this.message;
      await this.ask(async () => {
        await api.deleteTurn(id);
        offerUndo("undo.turn", {}, () => api.restoreTurn(id));
      });
    },
    choose(position) {
      return this.ask(() => api.showBranch(this.versions[position]));
    },
    async ask(request) {
      session.notice = null;
      try {
        await request();
      } catch (error) {
        session.notice = error.message;
      }
    },
    fit() {
      const { field } = this.$refs;
      field.style.height = "auto";
      field.style.height = `${field.scrollHeight}px`;
    },
  },
};
