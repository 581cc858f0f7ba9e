/** Which model answers in this conversation, and what else there is. Its replies so far stay; the next one is of the new. */
import * as api from "pagoda/api.js";
import { PgFetching } from "pagoda/fetching.js";
import { PgFolders } from "pagoda/folders.js";
import { budgetOf, describeForecast, describeMeasured } from "pagoda/forecast.js";
import { PgIcon } from "pagoda/icons.js";
import { PgMemory } from "pagoda/memory.js";
import { onScreen, session } from "pagoda/session.js";
import { bytes, number, t } from "pagoda/words.js";

export const PgPicker = {
  components: { PgFetching, PgFolders, PgIcon, PgMemory },
  template: `
    <button type="button" class="pg-picker" :aria-label="t('picker.open', {name: nameOf(chosen)})" aria-haspopup="dialog"
            :disabled="!conversation.loaded || conversation.missing" @click="open">
      <span dir="ltr">{{ nameOf(chosen) }}</span>
      <small v-if="coming" :title="t('fetching.running', {name: coming.name})"><pg-icon name="import" />{{ percent(coming) }}</small>
      <pg-icon name="chevron" /></button>
    <dialog ref="dialog" class="pg-dialog pg-models" :aria-label="t('picker.title')" @keydown.esc.stop @click.self="$refs.dialog.close()"
            @close="asking += 1">
      <header><h2>{{ t('picker.title') }}</h2>
        <button type="button" class="pg-tool" :aria-label="t('details.close')" @click="$refs.dialog.close()"><pg-icon name="close" /></button>
      </header>
      <p>{{ t('picker.note') }}</p>
      <p v-if="error" class="pg-settings-error" role="alert">{{ error }}</p>
      <template v-for="group in groups" :key="group.name">
        <h3 v-if="groups.length > 1">{{ t('picker.' + group.name) }}</h3>
        <ul :aria-busy="models === null">
          <li v-for="model in group.models" :key="model.name">
            <button type="button" :aria-pressed="model.name === chosen" :disabled="choosing || problemOf(model) !== undefined" @click="choose(model.name)">
              <b dir="ltr">{{ nameOf(model.name) }}</b>
              <small>{{ about(model) }}</small>
              <small v-if="problemOf(model)" class="bad">{{ problemOf(model) }}</small>
              <small v-else-if="model.here" class="pg-forecast">{{ forecastOf(model) }}</small>
              <pg-icon v-if="model.name === chosen" name="done" />
            </button>
          </li>
        </ul>
      </template>
      <pg-memory v-if="memory?.auto_bytes" :memory="memory" :name="nameOf(chosen)" :forecast="forecasts[chosen]?.forecast" @changed="memory = $event" />
      <template v-if="memory?.auto_bytes">
        <pg-fetching @arrived="look" />
        <pg-folders @changed="look" />
      </template>
    </dialog>`,
  data: () => ({ session, models: null, error: null, choosing: false, byDefault: null, memory: null, forecasts: {}, asking: 0 }),
  computed: {
    conversation: () => onScreen.value,
    chosen() {
      return this.conversation.model ?? this.byDefault ?? session.model?.name ?? "default";
    },
    groups() {
      const models = this.models ?? [];
      const groups = { here: models.filter((model) => model.here), elsewhere: models.filter((model) => !model.here) };
      return Object.entries(groups).filter(([, some]) => some.length).map(([name, some]) => ({ name, models: some }));
    },
    coming: () => session.downloads.find((download) => download.state === "loading"),
  },
  methods: {
    t,
    percent: ({ done, total }) => `${number(total ? Math.floor((100 * done) / total) : 0)}%`,
    nameOf: (name) => (name === "default" ? t("model.default") : name.split("/").filter(Boolean).slice(-2).join("/")),
    about({ name, size_bytes: size, here }) {
      const inEngine = here && name === session.model?.name && session.model.state === "ready";
      const where = !here ? "upstream" : name === "default" ? "own" : /^[/~.]/.test(name) ? "folder" : "hub";
      return [t(`picker.${where}`), size && bytes(size), inEngine && t("picker.loaded")].filter(Boolean).join(" · ");
    },
    problemOf({ name }) {
      return this.forecasts[name]?.forecast?.problem;
    },
    forecastOf({ name }) {
      const said = this.forecasts[name];
      if (said === undefined) return t("forecast.looking");
      if (!said.forecast) return t(name === "default" ? "forecast.not_made" : "forecast.unknown");
      return [describeForecast(said.forecast, budgetOf(this.memory)), describeMeasured(said.measured)].filter(Boolean).join(" · ");
    },
    open() {
      this.$refs.dialog.showModal();
      return this.look();
    },
    /** One model after the other: each look takes seconds the first time, and the page waits for none of them. */
    async look() {
      this.error = null;
      const asked = (this.asking += 1);
      try {
        const [{ models, default: byDefault }, memory] = await Promise.all([api.models(), api.memory()]);
        Object.assign(this, { models, byDefault, memory });
        const here = models.filter((model) => model.here);
        for (const { name } of [...here.filter((model) => model.name === this.chosen), ...here]) {
          if (asked !== this.asking) return; // closed, or asked anew
          if (!this.forecasts[name]?.forecast) this.forecasts[name] = await api.forecast(name).catch(() => ({}));
        }
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
        conversation.here = this.models.find((model) => model.name === name)?.here;
        this.$refs.dialog.close();
      } catch (error) {
        this.error = error.message;
      }
      this.choosing = false;
    },
  },
};
