/** How the model is to answer in this conversation: a system prompt, and how freely it chooses its words. */
import * as api from "pagoda/api.js";
import { PgIcon } from "pagoda/icons.js";
import { onScreen } from "pagoda/session.js";
import { t } from "pagoda/words.js";

const PRESETS = {
  own: {},
  precise: { temperature: 0.2, top_p: 0.9 },
  balanced: { temperature: 0.7, top_p: 0.95 },
  creative: { temperature: 1.1, top_p: 1, repetition_penalty: 1.05 },
};
const CHOSEN_BY_PRESET = ["temperature", "top_p", "repetition_penalty"];
const FIELDS = [
  { name: "temperature", min: 0, max: 2, step: 0.1 },
  { name: "top_p", min: 0.01, max: 1, step: 0.01 },
  { name: "repetition_penalty", min: 0.1, max: 5, step: 0.05 },
  { name: "max_tokens", min: 1, max: 1_000_000, step: 1 },
  { name: "seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
];

export const PgSettings = {
  components: { PgIcon },
  template: `
    <button type="button" class="pg-tool" :aria-label="t('sampling.open')" :title="t('sampling.open')" aria-haspopup="dialog"
            :disabled="!conversation.loaded || conversation.missing" @click="open"><pg-icon name="sliders" /></button>
    <dialog ref="dialog" class="pg-dialog pg-settings" :aria-label="t('sampling.title')" @keydown.esc.stop>
      <form v-if="draft" @submit.prevent="save">
        <h2>{{ t('sampling.title') }}</h2>
        <label class="pg-setting"><b>{{ t('sampling.system') }}</b>
          <textarea v-model="draft.system" rows="3" dir="auto" maxlength="100000" :placeholder="t('sampling.system_hint')"></textarea></label>
        <div class="pg-presets" role="group" :aria-label="t('sampling.presets')">
          <button v-for="(values, name) in presets" type="button" class="pg-button" :aria-pressed="name === preset" @click="take(values)">
            {{ t('sampling.preset_' + name) }}</button>
        </div>
        <div class="pg-setting-grid">
          <label v-for="field in fields" class="pg-setting"><b>{{ t('sampling.' + field.name) }}</b>
            <input type="number" v-model="draft[field.name]" :min="field.min" :max="field.max" step="any" inputmode="decimal"
                   :name="field.name" :placeholder="t('sampling.own')">
            <small>{{ t('sampling.' + field.name + '_note') }}</small></label>
        </div>
        <p v-if="error" class="pg-settings-error" role="alert">{{ error }}</p>
        <div class="pg-dialog-actions">
          <button type="button" class="pg-button" @click="$refs.dialog.close()">{{ t('action.withdraw') }}</button>
          <button class="pg-button accent" :disabled="saving">{{ t('action.save') }}</button>
        </div>
      </form>
    </dialog>`,
  data: () => ({ draft: null, error: null, saving: false, presets: PRESETS, fields: FIELDS }),
  computed: {
    conversation: () => onScreen.value,
    preset() {
      const number = (value) => (value === "" || value === undefined ? undefined : Number(value));
      const fits = ([, values]) => CHOSEN_BY_PRESET.every((name) => number(this.draft[name]) === values[name]);
      return Object.entries(PRESETS).find(fits)?.[0];
    },
  },
  methods: {
    t,
    open() {
      const { system, sampling } = this.conversation;
      this.draft = { system: system ?? "" };
      for (const { name } of FIELDS) this.draft[name] = sampling?.[name] ?? "";
      this.error = null;
      this.$nextTick(() => this.$refs.dialog.showModal());
    },
    take(values) {
      for (const name of CHOSEN_BY_PRESET) this.draft[name] = values[name] ?? "";
    },
    async save() {
      const conversation = this.conversation;
      const sampling = { ...conversation.sampling }; // what this panel does not show stays as it is
      for (const { name } of FIELDS) {
        if (this.draft[name] === "") delete sampling[name];
        else sampling[name] = Number(this.draft[name]);
      }
      const settings = { system: this.draft.system.trim() || null, sampling };
      this.saving = true;
      try {
        const answer = conversation.id === null ? settings : await api.changeConversation(conversation.id, settings);
        Object.assign(conversation, { system: answer.system, sampling: answer.sampling });
        this.$refs.dialog.close();
      } catch (error) {
        this.error = error.message;
      }
      this.saving = false;
    },
  },
};
