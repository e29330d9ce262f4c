// Search without a server: a page that was opened as a file may not start a worker, which the search of the theme needs.
// There it gets a hidden frame of the same page in its place, which runs the worker's script and passes messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inside = frame.contentWindow, script = frame.contentDocument.createElement("script");
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside = new Promise((ready) => { script.onload = () => ready(inside); });
      script.src = address;
      frame.contentDocument.body.append(script);
    }

    async postMessage(data) {
      const inside = await this.inside;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }
  };
}
