/**
 * Following the stream: the view stays at the newest line only while the person is there. Whoever scrolls up to read
 * is left alone until they come back to the bottom.
 */
const NEAR = 60; // pixels from the bottom that still count as being there

export class Follower {
  /**
   * @param {HTMLElement} scroller
   * @param {HTMLElement} content what grows inside it
   * @param {(atBottom: boolean) => void} report
   */
  constructor(scroller, content, report) {
    this.scroller = scroller;
    this.content = content;
    this.report = report;
    this.following = true;
    this.lastTop = 0;
    this.onScroll = () => this.noticeScroll();
    scroller.addEventListener("scroll", this.onScroll, { passive: true });
    this.observer = new ResizeObserver(() => this.settle());
    this.observer.observe(content);
    this.observer.observe(scroller);
  }

  // Only a move upwards is a wish to stay: text that grew meanwhile also leaves the bottom out of sight.
  noticeScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const near = scrollHeight - scrollTop - clientHeight <= NEAR;
    if (near) this.following = true;
    else if (scrollTop < this.lastTop) this.following = false;
    this.lastTop = scrollTop;
    this.report(near || this.following);
  }

  settle() {
    if (this.following) this.scroller.scrollTop = this.scroller.scrollHeight;
    this.noticeScroll();
  }

  toNewest(smooth = false) {
    this.following = true;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.scroller.scrollTo({ top: this.scroller.scrollHeight, behavior: smooth && !calm ? "smooth" : "instant" });
    this.report(true);
  }

  /**
   * Stand where the person stood; null is the newest line.
   * @param {import("pagoda/places.js").Place | null} place
   * @returns {boolean} false when the message of that place is not here (yet)
   */
  restore(place) {
    if (place === null) {
      this.toNewest();
      return true;
    }
    const message = [...this.content.children].find((child) => child.dataset.message === place.message);
    if (!message) return false;
    this.following = false;
    this.scroller.scrollTop = message.offsetTop + place.offset;
    this.noticeScroll();
    return true;
  }

  /** @returns {import("pagoda/places.js").Place | null} */
  place() {
    if (this.following) return null;
    const top = this.scroller.scrollTop;
    const message = [...this.content.children].find((child) => child.dataset.message && child.offsetTop + child.offsetHeight > top);
    return message ? { message: message.dataset.message, offset: top - message.offsetTop } : null;
  }

  stop() {
    this.observer.disconnect();
    this.scroller.removeEventListener("scroll", this.onScroll);
  }
}
