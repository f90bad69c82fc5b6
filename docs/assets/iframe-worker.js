// Search in pages that are opened as files: there a browser starts no worker, so a hidden frame runs its script.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(script) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = frame.contentWindow
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = new Promise(resolve => {
        const element = frame.contentDocument.createElement("script")
        element.src = script
        element.onload = () => resolve(inner)
        frame.contentDocument.body.append(element)
      })
    }
    async postMessage(data) {
      const inner = await this.ready
      inner.dispatchEvent(new MessageEvent("message", { data }))
    }
    terminate() {}
  }
}
