/** What stands above the conversation when something needs saying: the model is not ready, or the connection is gone. */
import * as api from "pagoda/api.js";
import { session } from "pagoda/session.js";
import { describeLoading } from "pagoda/status.js";
import { t } from "pagoda/words.js";

export const PgBanner = {
  template: `
    <div class="pg-banners">
      <div v-if="!session.connected" class="pg-banner warn" role="status">{{ t('banner.offline') }}</div>
      <div v-if="session.notice" class="pg-banner warn" role="alert">
        <span>{{ session.notice }}</span>
        <button type="button" class="pg-button quiet" @click="session.notice = null">{{ t('action.dismiss') }}</button>
      </div>
      <div v-if="session.model?.state === 'failed'" class="pg-banner bad" role="alert" data-model="failed">
        <span><b>{{ t('banner.model_failed') }}</b> {{ session.model.detail }}</span>
        <button type="button" class="pg-button" :disabled="retrying" @click="retry">{{ t('action.retry') }}</button>
      </div>
      <div v-else-if="session.model?.state === 'loading'" class="pg-banner" role="status" data-model="loading">
        <span class="pg-banner-words"><b>{{ load.stage }}</b> {{ load.details.join(' · ') }}</span>
        <span v-if="session.model.detail">{{ session.model.detail }}</span>
        <div class="pg-progress" :class="{idle: load.fraction === null}">
          <i :style="{transform: 'scaleX(' + (load.fraction ?? 0) + ')'}"></i>
        </div>
        <small>{{ t('banner.usable') }}</small>
      </div>
    </div>`,
  data: () => ({ session, retrying: false }),
  computed: {
    load() {
      return describeLoading(session.model.progress ?? {});
    },
  },
  methods: {
    t,
    async retry() {
      this.retrying = true;
      try {
        await api.retryModel();
      } catch (error) {
        session.notice = error.message;
      } finally {
        this.retrying = false;
      }
    },
  },
};
