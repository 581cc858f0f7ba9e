/** Models of the hub: named by the person, fetched by Pagoda, with how far they are. Pausing keeps what has come. */
import * as api from "pagoda/api.js";
import { session } from "pagoda/session.js";
import { bytes, range, t } from "pagoda/words.js";

const SPREAD = 0.15; // a network's rate of the last seconds is no promise

export const PgFetching = {
  emits: ["arrived"],
  template: `
    <section class="pg-fetching">
      <h3>{{ t('fetching.title') }}</h3>
      <form class="pg-inline" @submit.prevent="begin(name)">
        <input v-model="name" dir="ltr" autocomplete="off" autocapitalize="off" spellcheck="false" maxlength="300"
               :placeholder="t('fetching.placeholder')" :aria-label="t('fetching.name')">
        <button class="pg-button" :disabled="!name.trim()">{{ t('fetching.begin') }}</button>
      </form>
      <p v-if="error" class="pg-settings-error" role="alert">{{ error }}</p>
      <ul>
        <li v-for="download in session.downloads" :key="download.name" :data-download="download.state">
          <b dir="ltr">{{ download.name }}</b>
          <small :class="{bad: download.state === 'failed'}">{{ describe(download) }}</small>
          <div v-if="download.state !== 'done'" class="pg-progress" role="progressbar" :aria-label="download.name" aria-valuemin="0" aria-valuemax="100"
               :aria-valuenow="Math.floor(100 * share(download))"><i :style="{transform: 'scaleX(' + share(download) + ')'}"></i></div>
          <div class="pg-inline">
            <button v-if="running(download)" type="button" class="pg-button" @click="ask(() => api.pauseDownload(download.name))">{{ t('fetching.pause') }}</button>
            <button v-else-if="download.state !== 'done'" type="button" class="pg-button" @click="begin(download.name)">
              {{ t(download.done ? 'fetching.resume' : 'action.retry') }}</button>
            <button type="button" class="pg-button quiet" @click="ask(() => api.cancelDownload(download.name))">
              {{ t(download.state === 'done' ? 'action.dismiss' : 'action.withdraw') }}</button>
          </div>
        </li>
      </ul>
    </section>`,
  data: () => ({ session, api, name: "", error: null }),
  watch: {
    "session.downloads"(now, before) {
      const done = (rows) => rows.filter((row) => row.state === "done").length;
      if (done(now) > done(before)) this.$emit("arrived");
    },
  },
  methods: {
    t,
    running: ({ state }) => state === "asking" || state === "loading",
    share: ({ done, total }) => (total ? done / total : 0),
    describe({ state, done, total, bytes_per_s: rate, detail }) {
      if (state === "failed") return detail;
      if (state === "asking") return t("fetching.asking");
      if (state === "done") return t("fetching.done", { size: bytes(total) });
      const parts = total ? [t("status.of", { done: bytes(done), total: bytes(total) })] : [];
      if (state === "paused") return [t("fetching.paused"), ...parts].join(" · ");
      if (rate === 0) return [...parts, t("fetching.silent")].join(" · ");
      if (!rate) return parts.join(" · ");
      const left = (total - done) / rate;
      return [...parts, `${bytes(rate)}/s`, t("fetching.left", { range: range(left * (1 - SPREAD), left * (1 + SPREAD)) })].join(" · ");
    },
    begin(name) {
      return this.ask(async () => {
        await api.download(name);
        this.name = "";
      });
    },
    async ask(request) {
      this.error = null;
      try {
        await request();
      } catch (error) {
        this.error = error.message;
      }
    },
  },
};
