import "@mantine/core/styles.css";
import "./styles.css";

import { MantineProvider, createTheme, type CSSVariablesResolver } from "@mantine/core";
import { QueryClientProvider } from "@tanstack/react-query";
import { createRoot } from "react-dom/client";
import { Router } from "wouter";

import { App } from "./app";
import { queries } from "./queries";
import { ZoneProvider } from "./time";

const theme = createTheme({
  primaryColor: "indigo",
  primaryShade: { light: 8, dark: 8 },
  fontFamily: "system-ui, sans-serif",
  cursorType: "pointer",
});

/** The library's greys for lesser text are too faint for AA. */
const readable: CSSVariablesResolver = () => ({
  variables: {},
  light: { "--mantine-color-dimmed": "#495057", "--mantine-color-anchor": "#364fc7" },
  dark: { "--mantine-color-dimmed": "#c1c2c5", "--mantine-color-anchor": "#91a7ff" },
});

const nonce = document.querySelector<HTMLMetaElement>('meta[name="style-nonce"]')?.content ?? "";

// what a page throws it shows itself: for the console that is no second error
const onCaughtError = (error: unknown) => console.warn(error);

createRoot(document.getElementById("root")!, { onCaughtError }).render(
  <MantineProvider theme={theme} cssVariablesResolver={readable} defaultColorScheme="auto" getStyleNonce={() => nonce}>
    <QueryClientProvider client={queries}>
      <ZoneProvider>
        <Router base="/admin">
          <App />
        </Router>
      </ZoneProvider>
    </QueryClientProvider>
  </MantineProvider>,
);
