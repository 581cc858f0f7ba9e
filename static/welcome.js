/** The empty page: who is here, how clever it is, and three things to try. */
import { compose, session } from "pagoda/session.js";
import { t } from "pagoda/words.js";

export const PgWelcome = {
  template: `
    <section class="pg-welcome">
      <span class="pg-mark" aria-hidden="true"></span>
      <h2>{{ t('welcome.title') }}</h2>
      <p class="pg-model" v-if="session.model">
        <b>{{ isDefault ? t('model.default') : session.model.name }}</b>
        <span>{{ t(isDefault ? 'model.default_note' : 'model.other_note') }}</span>
      </p>
      <ul>
        <li v-for="index in 3"><button type="button" @click="compose(t('welcome.try_' + index))">{{ t('welcome.try_' + index) }}</button></li>
      </ul>
    </section>`,
  data: () => ({ session }),
  computed: {
    isDefault() {
      return session.model.name === "default";
    },
  },
  methods: { t, compose },
};
