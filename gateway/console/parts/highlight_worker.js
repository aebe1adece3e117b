// A worker that colours code. Its patterns can take very long on some texts, so whoever asks ends it then.

import { pieces } from "./colours.js";
import highlighter from "../vendor/highlight.mjs";

onmessage = ({ data: { text, language } }) => postMessage(pieces(highlighter, text, language));
pieces(highlighter, "print('ready')", "python"); // what only the first block would wait for
postMessage("ready");
