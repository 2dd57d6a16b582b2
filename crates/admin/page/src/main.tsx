/** The management page of Leveret. */

import { render } from "preact";

import "uplot/dist/uPlot.min.css";
import "./styles/base.css";
import "./styles/frame.css";
import "./styles/parts.css";

import { App } from "./app";
import { listen } from "./keys";
import { resume } from "./session";

listen();
void resume();
render(<App />, document.getElementById("page")!);
