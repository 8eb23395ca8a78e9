#!/usr/bin/env python3
"""Records goldens of the vision encoders that tests/fixtures/towers makes.

  record.py VL_GOLDEN2 PAIR IMAGES MODELS [CASE...]

PAIR: a folder here, with its cases.json. IMAGES: the folder of the images. MODELS: the folder of
the pair's files (target/towers/PAIR after a test has run). VL_GOLDEN2: the recorder of the large
fixtures (vision2/vl_golden2.cpp), which runs stock llama.cpp; its first lines say how to build it.
Its lists of sizes take Kimi-VL for an encoder of squares: remove that case before, so that the
default is taken, which has any size.

Writes PAIR/CASE.safetensors with the arrays that the case keeps, PAIR/CASE.json with what else it
says, and PAIR/sizes-NAME.json. Pixels are stored as the hash of their bytes, FNV-1a of 64 bits over
the planes of red, green and blue, after a check that these bytes give llama.cpp's pixels to the
bit. Of logits, the last `logits_rows` rows are kept, where a case says so.
"""
import array, json, os, struct, subprocess, sys, tempfile

tool, pair, images, models, *only = sys.argv[1:]
name = os.path.basename(os.path.normpath(pair))
spec = json.load(open(os.path.join(pair, "cases.json")))
SIZE = {"F32": "f", "I32": "i"}


def model(what):
    return os.path.join(models, f"{name}-{what}.gguf")


def limits(case):
    keys = [key for key in ("min_tokens", "max_tokens") if key in case]
    return [x for key in keys for x in ("--" + key.replace("_", "-"), str(case[key]))]


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def pixels_hash(planes):
    """Returns the hash of the bytes whose normalised values these are."""
    mean, std = [[f32(x) for x in spec[key]] for key in ("mean", "std")]
    values = array.array("f", planes)
    n, h = len(values) // 3, 0xCBF29CE484222325
    for colour in range(3):
        by_value = {}
        for byte in range(256):
            scaled = f32(f32(byte / 255.0) - mean[colour])
            by_value[struct.pack("<f", scaled / std[colour])] = byte
        for value in values[colour * n : (colour + 1) * n]:
            byte = by_value[struct.pack("<f", value)]
            h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def save(path, arrays):
    header, data = {}, b""
    for key in sorted(arrays):
        kind, shape, values = arrays[key]
        ends = [len(data), len(data) + len(values)]
        header[key] = {"dtype": kind, "shape": shape, "data_offsets": ends}
        data += values
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)


def record(case, at):
    tower = model("mmproj-" + case.get("mmproj", "F32"))
    command = [tool, "--model", model("text-F32"), "--mmproj", tower]
    command += ["--prompt", case["prompt"], "--out", at, "--taps", case.get("taps", "")]
    command += ["--fa", case.get("fa", "off"), "--kv", case.get("kv", "f32")]
    command += ["--generate", str(case.get("generate", 0))] + limits(case)
    for image in case.get("images", []):
        command += ["--image", os.path.join(images, image + ".png")]
    subprocess.run(command, check=True)
    about, arrays, hashes = json.load(open(at + ".json")), {}, {}
    for entry in about.pop("arrays"):
        key, kind, shape = entry["name"], entry["type"].upper(), entry["shape"]
        values = open(f"{at}.{key}.{entry['type']}", "rb").read()
        part = key.split(".")[-1]
        if part == "pixels":
            hashes[int(key[len("image") : -len(".pixels")])] = pixels_hash(values)
        elif part in case["keep"] or key.startswith("image0."):
            if key == "logits" and "logits_rows" in case:
                rows = case["logits_rows"]
                shape, values = [rows, shape[1]], values[-4 * rows * shape[1] :]
            arrays[key] = (kind, shape, values)
    save(os.path.join(pair, case["name"] + ".safetensors"), arrays)
    known = {"images": case.get("images", []), "text": "F32", "mmproj": case.get("mmproj", "F32")}
    known |= {key: case[key] for key in ("min_tokens", "max_tokens") if key in case}
    known["pixels"] = [hashes[i] for i in sorted(hashes)]
    with open(os.path.join(pair, case["name"] + ".json"), "w") as out:
        json.dump(known | about, out, ensure_ascii=False, separators=(",", ":"))
        out.write("\n")


with tempfile.TemporaryDirectory() as folder:
    for case in spec["cases"]:
        if not only or case["name"] in only:
            record(case, os.path.join(folder, case["name"]))
    for sizes in spec.get("sizes", []) if not only else []:
        at = os.path.join(folder, "sizes")
        command = [tool, "--model", model("text-F32"), "--mmproj", model("mmproj-F32"), "--out", at]
        command += ["--sizes", ";".join(f"{w} {h}" for w, h in spec["list"])]
        subprocess.run(command + limits(sizes), check=True)
        found = json.load(open(at + ".json"))
        with open(os.path.join(pair, f"sizes-{sizes['name']}.json"), "w") as out:
            both = found["min_tokens"], found["max_tokens"]
            out.write('{"min_tokens":%d,"max_tokens":%d,"sizes":[\n' % both)
            lines = (json.dumps(x, separators=(",", ":")) for x in found["sizes"])
            out.write(",\n".join(lines) + "\n]}\n")
