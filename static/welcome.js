/** The empty page: who is here, how clever it is, and three things to try. */
import { compose, onScreen, session } from "pagoda/session.js";
import { t } from "pagoda/words.js";

export const PgWelcome = {
  template: `
    <section class="pg-welcome">
      <span class="pg-mark" aria-hidden="true"></span>
      <h2>{{ t('welcome.title') }}</h2>
      <p class="pg-model" v-if="session.model">
        <b>{{ name === 'default' ? t('model.default') : name }}</b>
        <span>{{ note }}</span>
      </p>
      <ul>
        <li v-for="index in 3"><button type="button" @click="compose(t('welcome.try_' + index))">{{ t('welcome.try_' + index) }}</button></li>
      </ul>
    </section>`,
  data: () => ({ session }),
  computed: {
    /** What was chosen for this chat, else what answers where nothing was chosen. */
    name: () => onScreen.value.model ?? session.model.name,
    note() {
      if (this.name === "default") return t("model.default_note");
      const here = this.name === session.model.name ? session.model.here : onScreen.value.here;
      return here === undefined ? "" : t(here ? "model.other_note" : "model.elsewhere_note");
    },
  },
  methods: { t, compose },
};
