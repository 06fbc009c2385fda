// The explorer's pages: modules for a browser, with no build step.
import js from "@eslint/js";

export default [
  js.configs.recommended,
  {
    files: ["src/tapeless/explorer/pages/*.js"],
    rules: {
      "max-len": ["error", { code: 120 }],
      "no-undef": "off", // tsc knows the browser's names
      "prefer-const": "error",
      eqeqeq: "error",
    },
  },
];
