/** Which model answers in this conversation, and what else there is. Its replies so far stay; the next one is of the new. */
import * as api from "pagoda/api.js";
import { PgIcon } from "pagoda/icons.js";
import { onScreen, session } from "pagoda/session.js";
import { bytes, t } from "pagoda/words.js";

export const PgPicker = {
  components: { PgIcon },
  template: `
    <button type="button" class="pg-picker" :aria-label="t('picker.open', {name: nameOf(chosen)})" aria-haspopup="dialog"
            :disabled="!conversation.loaded || conversation.missing" @click="open">
      <span dir="ltr">{{ nameOf(chosen) }}</span><pg-icon name="chevron" /></button>
    <dialog ref="dialog" class="pg-dialog pg-models" :aria-label="t('picker.title')" @keydown.esc.stop>
      <h2>{{ t('picker.title') }}</h2>
      <p>{{ t('picker.note') }}</p>
      <p v-if="error" class="pg-settings-error" role="alert">{{ error }}</p>
      <ul :aria-busy="models === null">
        <li v-for="model in models ?? []" :key="model.name">
          <button type="button" :aria-pressed="model.name === chosen" :disabled="choosing" @click="choose(model.name)">
            <b dir="ltr">{{ nameOf(model.name) }}</b>
            <small>{{ about(model) }}</small>
            <pg-icon v-if="model.name === chosen" name="done" />
          </button>
        </li>
      </ul>
      <div class="pg-dialog-actions">
        <button type="button" class="pg-button" @click="$refs.dialog.close()">{{ t('action.withdraw') }}</button>
      </div>
    </dialog>`,
  data: () => ({ session, models: null, error: null, choosing: false, byDefault: null }),
  computed: {
    conversation: () => onScreen.value,
    chosen() {
      return this.conversation.model ?? this.byDefault ?? session.model?.name ?? "default";
    },
  },
  methods: {
    t,
    nameOf: (name) => (name === "default" ? t("model.default") : name.split("/").filter(Boolean).slice(-2).join("/")),
    about({ name, size_bytes: size, here }) {
      const inEngine = here && name === session.model?.name && session.model.state === "ready";
      return [t(here ? "picker.here" : "picker.upstream"), size && bytes(size), inEngine && t("picker.loaded")].filter(Boolean).join(" · ");
    },
    async open() {
      this.$refs.dialog.showModal();
      this.error = null;
      try {
        const { models, default: byDefault } = await api.models();
        Object.assign(this, { models, byDefault });
      } catch (error) {
        this.error = error.message;
      }
    },
    async choose(name) {
      const conversation = this.conversation;
      this.choosing = true;
      try {
        if (conversation.id !== null) await api.changeConversation(conversation.id, { model: name });
        conversation.model = name;
        this.$refs.dialog.close();
      } catch (error) {
        this.error = error.message;
      }
      this.choosing = false;
    },
  },
};
