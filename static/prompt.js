/** One message of the person: there at once, marked while it is on its way, red with Retry when it did not arrive. */
import { PgIcon } from "pagoda/icons.js";
import { resend, withdraw } from "pagoda/outbox.js";
import { compose, onScreen, session } from "pagoda/session.js";
import { t } from "pagoda/words.js";

export const PgPrompt = {
  components: { PgIcon },
  props: { message: Object },
  template: `
    <article class="pg-prompt" :class="{failed: message.error, sending: message.id === null && !message.error}"
             :aria-label="t('transcript.you')" :data-message="message.id" :data-request="message.request_id">
      <div class="pg-bubble" dir="auto">{{ message.text }}</div>
      <div v-if="waits" class="pg-waits">
        <span role="status">{{ t('composer.will_send') }}</span>
        <button type="button" class="pg-button quiet" @click="edit">{{ t('action.edit') }}</button>
      </div>
      <div v-if="message.error" class="pg-failed" role="alert">
        <span>{{ message.error }}</span>
        <button type="button" class="pg-button" @click="retry">{{ t('action.retry') }}</button>
        <button type="button" class="pg-button quiet" @click="edit">{{ t('action.edit') }}</button>
      </div>
    </article>`,
  computed: {
    waits() {
      return this.message.id === null && !this.message.error && !session.connected;
    },
  },
  methods: {
    t,
    retry() {
      resend(onScreen.value, this.message.request_id);
    },
    edit() {
      compose(withdraw(onScreen.value, this.message.request_id));
    },
  },
};
