// The questions at the end of the founding document, each with a short answer and where to see it.

import { h } from "./dom.js";
import { progress } from "./teach.js";

// what is asked, the answer, where to look: a view, or a chapter of the lessons
const QUESTIONS = [
  [
    "Why is it called back-propagation? What goes back?",
    "The derivative of the loss with respect to each intermediate result, from the last call to the first: how the loss would change if that result did.",
    "flow",
  ],
  [
    "Why are activations kept until the backward pass?",
    "Derivatives are made of them: a weight's gradient is what came in times what comes back, ReLU needs to know what was positive. In Memory, click a rectangle: the call that still reads it is named.",
    "memory",
  ],
  [
    "Why does a residual path help a deep model?",
    "Its derivative is 1: the gradient is added on unchanged beside whatever the branch makes of it. With 0.8 a layer, ten layers leave 0.11; with a path beside it, all of it.",
    "wrong",
  ],
  [
    "Why is ∂loss/∂score negative for the right word alone?",
    "It is p − 1 there and p everywhere else: raise the right score, lower every other in proportion to its probability.",
    "begins",
  ],
  [
    "Why do gradients shrink on the way back? Is that bad?",
    "Each call may weaken them. A factor of ten over a model is usual, a millionth is not: those weights no longer learn.",
    "run",
  ],
  [
    "The loss is nearly 0: why do weights still move?",
    "The gradient is p − y, never exactly 0. On Run the gradient's size falls with the loss, and updates with it; Adam divides by it and keeps moving.",
    "run",
  ],
  ["Probabilities 0.12, 0.24, 0.05, 0.59, the last is right: what is p − y?", "0.12, 0.24, 0.05, −0.41.", "begins"],
  [
    "x = (0.8, −0.4, 0.6) and a slope of −0.25: what is the gradient of that column?",
    "x times the slope: (−0.2, 0.1, −0.15).",
    "output",
  ],
  [
    "ReLU read (−1.5, 2.3, 0, −0.7, 1.8); what becomes of (0.5, −0.3, 0.2, −0.4, 0.6)?",
    "(0, −0.3, 0, 0, 0.6): what was not positive passes nothing; at exactly 0 the rule is a choice, and it is 0.",
    "blocks",
  ],
  [
    "Write the chain for W₁ in loss(ReLU(x W₁) W₂).",
    "∂loss/∂W₁ = xᵀ · [(∂loss/∂y · W₂ᵀ) where x W₁ > 0]. The first exercise computes it with numbers.",
    "practice",
  ],
  [
    "Why is LayerNorm's backward longer than a product's?",
    "Mean and deviation depend on every element, so each element's gradient has two more terms: one for the mean, one for the deviation. Click a layernorm in Flow for the formula; leave one out and you have a bug of the catalogue.",
    "flow",
  ],
  [
    "Losses 0.450015 and 0.449985 at w ± 10⁻⁵: what is the gradient?",
    "3·10⁻⁵ / 2·10⁻⁵ = 1.5. It should agree with the backward to as many digits as the losses have left after the subtraction.",
    "update",
  ],
  [
    "What does a gradient pass through on its way to the queries of block 1?",
    "Everything below the loss: output, norms, feed-forward, the attention of block 2, and then block 1's. Read the column in Flow from the bottom up.",
    "flow",
  ],
  [
    "What happens to a gradient at a residual?",
    "It goes both ways, whole: into the branch and past it; where they meet again, they are added (+= in the list of calls).",
    "flow",
  ],
  [
    "Does one head get gradients from another's pattern?",
    "Not directly: each has its own columns of q, k and v. They meet in the product after them, and in the stream.",
    "flow",
  ],
  ["A comma stands twice: what about its embedding?", "Its row gets the sum of both gradients.", "words"],
  [
    "Ten layers with a factor of 0.8: what arrives with and without a residual path?",
    "Without, 0.8¹⁰ = 0.11. With, at least the whole of it along the path, and the branches' parts on top.",
    "wrong",
  ],
  ["w = 0.234, gradient −0.05, lr 0.001: how many steps to 0.25?", "Each adds 0.00005: 320.", "update"],
  [
    "A learning rate that is too large, too small, right?",
    "Beyond 2 over the curvature it diverges; far below nothing happens for long. On the parabola of exercise 5 the border is 2.",
    "practice",
  ],
  [
    "Why do momentum and Adam help?",
    "Momentum adds up what gradients agree on; Adam divides by their usual size, so that weights with small gradients move as far. Exercise 4 has the numbers.",
    "practice",
  ],
  [
    "Training loss 0.12, held-out loss 0.45: what is it?",
    "It learns its examples by heart. More data, a smaller model, dropout, or stop at the best. The doctor says it in words.",
    "run",
  ],
  [
    "Gradients of the first block are 10⁻¹²: what to change?",
    "Put the norms before the branches (pre-norm), warm the learning rate up, begin with weights of the right size.",
    "wrong",
  ],
  [
    "How would you test a backward?",
    "Against a difference of losses, or better the complex step, which has no cancellation: twelve digits and more. tapeless check does it for every element.",
    "update",
  ],
  [
    "The loss jumps to five times its value and falls again: why?",
    "A batch unlike the others, or too large a step. On Run, the gradient norm shows the spike and which section it came from.",
    "run",
  ],
  [
    "Why is a batch of 1 noisier than one of 32? Is that bad?",
    "The mean of 32 gradients varies less, by √32. Some noise leads out of flat places; too much wanders.",
    "path",
  ],
  [
    "What does recomputation save, and what does it cost?",
    "Activations of a block are not kept but computed again on the way back: less memory, about a third more work. Switch it in Memory.",
    "memory",
  ],
  [
    "Where do ∂Q = ∂S K and ∂K = ∂Sᵀ Q come from?",
    "S = Q Kᵀ: each score is a product of a row of Q and a row of K, so each row's gradient is a sum of the other's rows, weighted by ∂S.",
    "flow",
  ],
  [
    "p − y lies between −1 and 1: why is that good?",
    "However wrong the model is, the gradient that begins there is bounded.",
    "begins",
  ],
  [
    "What needs memory in training that does not in use?",
    "Gradients, the optimizer's state (twice the weights for Adam), and every activation that a backward call reads. Memory shows the bytes of each kind.",
    "memory",
  ],
  [
    "Why may gradients be less precise than weights?",
    "A gradient is noisy anyway, but a weight adds up updates that are far below its own rounding. So a master copy stays in float32.",
    "memory",
  ],
  [
    "Invent an activation without dead units.",
    "Let a little through: 0.01 x below zero, with the derivative 0.01 there. GELU, which the GPT presets use, is smooth. docs/adding-an-op.md has you write and prove one.",
    "wrong",
  ],
  [
    "Why does a residual keep the gradient's size?",
    "y = x + f(x): ∂x = ∂y + ∂y · f′. The first term is all of ∂y, whatever f is.",
    "blocks",
  ],
  ["‖g‖ = 2.5, limit 1: what does clipping make of g?", "g · 1/2.5 = 0.4 g: the direction stays.", "run"],
  [
    "Why is the softmax's derivative not diagonal?",
    "Its outputs share one sum: when one rises all others fall. ds = p · (dp − Σ p·dp).",
    "blocks",
  ],
  [
    "How would you see what each part does to the gradient?",
    "Measure before and after it: that is what every recorded step does, for every call. Flow shows it.",
    "flow",
  ],
];
const VIEWS = { run: "Run", flow: "Flow", memory: "Memory" };

export async function questions({ model }) {
  const known = progress.read();
  return [
    h("p", {}, "Answer to yourself, then open. Most can be answered by looking: the button leads there."),
    ...QUESTIONS.map(([asked, answer, where], number) => {
      const go = () => {
        if (!VIEWS[where]) model.chapter = where;
        model.open(VIEWS[where] ? where : "learn");
      };
      const box = h(
        "details",
        { className: "question" },
        h("summary", {}, `${number + 1}. ${asked}`),
        h("p", {}, answer),
        h("button", { type: "button", onclick: go }, VIEWS[where] ? `look: ${VIEWS[where]}` : "look: the lesson"),
      );
      if (known[`question-${number}`]) box.classList.add("done");
      box.addEventListener("toggle", () => {
        if (box.open) {
          progress.set(`question-${number}`, "seen");
          box.classList.add("done");
        }
      });
      return box;
    }),
  ];
}
