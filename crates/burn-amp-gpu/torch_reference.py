"""The figures of burn-amp-gpu in PyTorch: products, and training steps of the same model.

Writes torch_matmul.csv and torch_train.csv with the columns of matmul.csv and train.csv.
"""

import argparse
import csv
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY = 50257
WIDTH, HEADS, LAYERS, TOKENS = 768, 12, 12, 1024


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, x, mask):
        batch, tokens, width = x.shape
        parts = self.query_key_value(x).split(width, dim=2)
        query, key, value = (
            part.view(batch, tokens, HEADS, width // HEADS).transpose(1, 2) for part in parts
        )
        if self.attention == "explicit":
            scores = query @ key.transpose(2, 3) / (width // HEADS) ** 0.5
            scores = scores.masked_fill(mask, float("-inf"))
            attended = torch.softmax(scores, dim=3) @ value
        else:
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return attended.transpose(1, 2).reshape(batch, tokens, width)

    def forward(self, x, mask):
        x = x + self.projection(self.attend(self.attention_norm(x), mask))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Gpt(nn.Module):
    """Embeddings, blocks, a norm and an output layer of its own weights, as burn-amp-bench's."""

    def __init__(self, attention):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block(attention) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids, targets, mask):
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(positions)
        for block in self.blocks:
            x = block(x, mask)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def median(values):
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def write(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def train(mode, attention, tf32, batch, steps):
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.manual_seed(42)
    device = "cuda"
    model = Gpt(attention).to(device)
    optim = torch.optim.AdamW(model.parameters(), lr=3e-4, eps=1e-5, weight_decay=0.01)
    half = {"bf16": torch.bfloat16, "f16": torch.float16}.get(mode)
    scaler = torch.amp.GradScaler(device, enabled=mode == "f16")
    count = torch.arange(batch * TOKENS, device=device)
    ids, targets = ((count * step % VOCABULARY).view(batch, TOKENS) for step in (7, 11))
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=device).triu(1)[None, None]

    losses, skipped, kept = [], 0, 0
    times = []
    for step in range(steps):
        if step == 3:
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        start = time.perf_counter()
        with torch.autocast(device, dtype=half or torch.bfloat16, enabled=half is not None):
            loss = model(ids, targets, mask)
        # A count on the host, which waits for nothing.
        kept = torch.cuda.memory_allocated() - before
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optim)
        scaler.update()
        optim.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if step >= 3:
            times.append(time.perf_counter() - start)
        skipped += int(scaler.get_scale() < scale)
        losses.append(loss.item())
    seconds = median(times)
    name = attention if attention == "explicit" else "sdpa"
    return {
        "framework": "PyTorch",
        "mode": mode + (" (TF32)" if mode == "f32" and tf32 else ""),
        "attention": name,
        "model": f"gpt-b{batch}t{TOKENS}c{WIDTH}h{HEADS}l{LAYERS}",
        "step_ms": seconds * 1e3,
        "tokens_per_s": batch * TOKENS / seconds,
        "kept_bytes": kept,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "steps": len(losses),
        "skipped": skipped,
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def shapes():
    """The shapes of burn-amp-gpu: family, kind, m, k, n."""
    for rows in (8192, 1024, 128, 16):
        for columns in (3 * WIDTH, WIDTH, 4 * WIDTH, VOCABULARY):
            family = "GPT-2 head" if columns == VOCABULARY else "GPT-2"
            yield family, "forward", rows, WIDTH, columns
    for size in (4096, 8192, 2048, 1024):
        yield "square", "forward", size, size, size
    for rows in (8, 1, 32, 64):
        for columns in (4096, 11008):
            yield "one row" if rows == 1 else "few rows", "forward", rows, 4096, columns
    for columns in (3 * WIDTH, VOCABULARY):
        family = "weight gradient" + (", head" if columns == VOCABULARY else "")
        yield family, "weight gradient", WIDTH, 8192, columns


def product_times(operation):
    for _ in range(3):
        operation()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(5):
        operation()
    torch.cuda.synchronize()
    once = (time.perf_counter() - start) / 5
    count = max(1, min(1000, int(0.02 / max(once, 1e-7))))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            operation()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / count)
    return median(times)


def products(out, end):
    rows = []
    for compute, half in (("bf16", torch.bfloat16), ("f32", None), ("f16", torch.float16)):
        torch.backends.cuda.matmul.allow_tf32 = True
        for family, kind, m, k, n in shapes():
            if time.monotonic() > end:
                break
            dtype = half or torch.float32
            # The weights are f32 and cast each time, as autocast does once a step and weight.
            if kind == "forward":
                lhs = torch.rand(m, k, device="cuda", dtype=dtype)
                rhs = torch.rand(k, n, device="cuda")
                operation = lambda: lhs @ rhs.to(dtype)
            else:
                lhs = torch.rand(k, m, device="cuda", dtype=dtype).t()
                rhs = torch.rand(k, n, device="cuda", dtype=dtype)
                operation = lambda: (lhs @ rhs).float()
            seconds = product_times(operation)
            rows.append(
                {
                    "group": family,
                    "product": kind,
                    "compute": compute,
                    "m": m,
                    "k": k,
                    "n": n,
                    "way": "PyTorch half" if half else "PyTorch f32",
                    "routine": "",
                    "micros": seconds * 1e6,
                    "tflops": 2 * m * k * n / seconds / 1e12,
                    "tf32": "" if half else "true",
                }
            )
            write(os.path.join(out, "torch_matmul.csv"), rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="results")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=23)
    parser.add_argument("--budget", type=float, default=90)
    parser.add_argument("--parts", default="matmul,train")
    args = parser.parse_args()
    end = time.monotonic() + args.budget
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}")

    runs = [
        ("bf16", "explicit", True),
        ("f32", "explicit", True),
        ("f16", "explicit", True),
        ("bf16", "op", True),
        ("f32", "explicit", False),
    ]
    rows = []
    for run in runs if "train" in args.parts else []:
        if time.monotonic() > end - 8:
            print(f"left out for lack of time: {run}")
            continue
        try:
            rows.append(train(*run, args.batch, args.steps))
        except torch.OutOfMemoryError:
            print(f"left out for lack of memory: {run}")
        torch.cuda.empty_cache()
        if rows:
            write(os.path.join(args.out, "torch_train.csv"), rows)
    if "matmul" in args.parts:
        products(args.out, end)


if __name__ == "__main__":
    main()
