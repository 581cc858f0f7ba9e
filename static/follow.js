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

  /** Stand where the person stood: a number of pixels from the top, or null for the newest line. */
  restore(position) {
    if (position === null) return this.toNewest();
    this.following = false;
    this.scroller.scrollTop = position;
    this.noticeScroll();
  }

  position() {
    return this.following ? null : this.scroller.scrollTop;
  }

  stop() {
    this.observer.disconnect();
    this.scroller.removeEventListener("scroll", this.onScroll);
  }
}
