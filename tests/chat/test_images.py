"""Images: opened, made tiles as transformers' processors make them, and told to engines."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from edgerelax.chat.album import Album
from edgerelax.chat.generate import Chat
from edgerelax.chat.images import Images, decoded, opened
from edgerelax.chat.openai import ChatRequest, RequestError, convert
from edgerelax.chat.template import ChatTemplate
from edgerelax.chat.text import Text
from edgerelax.chat.tokenizer import Tokenizer
from edgerelax.frontends.hf.images import processor_of
from edgerelax.ir.diagnostics import InputError
from tests.chat.fakes import Scripted, ids, tokenizer_json
from tests.chat.fakes import chat as fake_chat
from tests.chat.image_cases import FILE, cases

TILES = {"size": {"longest_edge": 48}, "max_image_size": {"longest_edge": 16}, "resample": 1}
KINDS: dict[str, dict[str, Any]] = {
    "crop": {
        "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 12},
        "crop_size": {"height": 12, "width": 12},
    },
    "small then crop": {
        "image_processor_type": "CLIPImageProcessorFast", "size": {"shortest_edge": 7},
        "crop_size": {"height": 12, "width": 12}, "resample": 2,
    },
    "pad": {
        "image_processor_type": "LlavaImageProcessor", "do_pad": True,
        "size": {"shortest_edge": 12}, "do_center_crop": False,
    },
    "stretch": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 9, "width": 9}},
    "split": {"image_processor_type": "SmolVLMImageProcessor", **TILES},
    "whole": {
        "image_processor_type": "Idefics3ImageProcessor", **TILES, "do_image_splitting": False,
    },
}  # fmt: skip


def images_of(folder: Path, config: dict[str, Any]) -> tuple[Images, np.ndarray, np.ndarray]:
    """The plan, scale and shift of a processor's config."""
    (folder / "preprocessor_config.json").write_bytes(msgspec.json.encode(config))
    found = processor_of(folder)
    fields = {"placeholder": "<image>", "token": 5, "tokens": 1, "side": found.side, **found.plan}
    return msgspec.convert(fields, Images), np.array(found.scale), np.array(found.shift)


def theirs(config: dict[str, Any]) -> Any:
    import transformers

    kind = config["image_processor_type"].removesuffix("Fast") + "Pil"
    fields = {name: value for name, value in config.items() if name != "image_processor_type"}
    return getattr(transformers, kind)(**fields)


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    config = KINDS[kind]
    images, scale, shift = images_of(tmp_path, config)
    processor = theirs(config)

    @settings(max_examples=25, deadline=None)
    @given(st.integers(1, 90), st.integers(1, 90), st.integers(0, 9))
    def check(width: int, height: int, seed: int) -> None:
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
        image = Image.fromarray(pixels)
        seen = images.seen(opened(pixels))
        more = {"return_row_col_info": True} if "max_image_size" in config else {}
        wanted = processor(image, return_tensors="np", **more)
        found = (seen.tiles * scale + shift).transpose(0, 3, 1, 2)
        values = wanted["pixel_values"]
        values = values[0] if values.ndim == 5 else values
        np.testing.assert_allclose(found, values, atol=1e-5)
        if "rows" in wanted:
            assert (seen.rows, seen.columns) == (wanted["rows"][0][0], wanted["cols"][0][0])

    check()


def test_the_table_that_runtime_js_reads_is_current() -> None:
    assert json.loads(FILE.read_text(encoding="utf-8")) == cases()


def png(image: Image.Image, kind: str = "PNG", **how: Any) -> str:
    data = io.BytesIO()
    image.save(data, kind, **how)
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def rgb(given_image: Any) -> Image.Image:
    found = opened(given_image)
    return decoded(found) if isinstance(found, bytes) else found


def test_images_are_opened_alike_wherever_they_come_from(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "image.png")
    data = (tmp_path / "image.png").read_bytes()
    for given_image in (image, pixels, png(image), tmp_path / "image.png", data):
        assert np.array_equal(np.asarray(rgb(given_image)), pixels)
    grey = pixels[..., 0]
    for given_image in (grey, grey[..., None], Image.fromarray(grey)):
        assert np.array_equal(np.asarray(rgb(given_image)), grey[..., None].repeat(3, -1))
    clear = np.dstack([pixels, np.full((5, 7), 0, np.uint8)])
    assert (np.asarray(rgb(clear)) == 255).all()
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held on its side
    assert rgb(png(image, exif=turned)).size == (5, 7)


@pytest.mark.parametrize(
    ("given_image", "said"),
    [
        ("https://example.com/a.png", r"(?s)no data: URL.*a file is a Path"),
        ("data:image/png,abc", "base64"),
        ("data:image/png;base64,@@", "damaged"),
        ("data:image/png;base64,aGVsbG8=", "no image of PNG"),
        (png(Image.new("RGB", (50, 50)))[:-60], "damaged"),
        (png(Image.new("1", (9000, 9000))), "9000x9000"),
        (np.zeros((3, 4, 5), np.uint8), r"uint8 \[3, 4, 5\]"),
        (np.zeros((4, 4, 3), np.float32), "float32"),
        (7, "int is no image"),
        (Path("nowhere.png"), "cannot be read"),
    ],
)
def test_what_is_no_image_is_refused(given_image: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        rgb(given_image)


def test_an_image_too_long_and_narrow_is_refused(tmp_path: Path) -> None:
    images, _, _ = images_of(tmp_path, KINDS["crop"])
    with pytest.raises(InputError, match="long and narrow"):
        images.seen(Image.new("RGB", (1_000_000, 1)))


WITH_IMAGES = (
    "{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}|"
    "{% endfor %}"
)
PLAN = {
    "placeholder": "<image>", "tokens": 2, "side": 16, "resample": 1, "resize": {"longest": 48},
    "tiles": {"side": 16, "split": True, "around": "<around>", "whole": "<whole>",
              "part": "<{row}-{column}>"},
}  # fmt: skip


def seeing(template: str) -> tuple[Chat, Scripted]:
    """A chat that sees images and answers 'hello'."""
    tokenizer = Tokenizer(tokenizer_json("<image>", "<s>"))
    plan = {**PLAN, "token": tokenizer.id_of("<image>")}
    file = {"templates": {"default": template}, "images": plan}
    chat_template = ChatTemplate(msgspec.json.encode({**file, "special_tokens": {}}))
    engine = Scripted([ids("hello")])
    text = Text(tokenizer, chat_template, (), len(tokenizer))
    return Chat(text, engine, "fake"), engine


def asked(*parts: Any) -> ChatRequest:
    content = [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]
    return convert({"messages": [{"role": "user", "content": content}]}, ChatRequest)


def local(image: Any) -> dict[str, Any]:
    return {"type": "image", "image": image}


ONE = "<around><whole><image><image><around>"
SIX = (
    "<around><1-1><image><image><around><1-2><image><image><around><1-3><image><image>\n"
    "<around><2-1><image><image><around><2-2><image><image><around><2-3><image><image>\n"
    f"\n{ONE}"
)


@pytest.mark.parametrize(
    ("template", "after"),
    [(WITH_IMAGES, ""), ("{{ messages[0].content }}|", "\n")],
    ids=["parts", "texts"],
)
def test_a_prompt_has_a_placeholder_for_each_vector(template: str, after: str) -> None:
    chat, engine = seeing(template)
    wide, small = Image.new("RGB", (60, 30), "red"), Image.new("RGB", (20, 20))
    url = {"type": "image_url", "image_url": {"url": png(wide), "detail": "low"}}
    images = chat.text.template.file.images
    assert images is not None
    assert chat.chat(asked("a", url, "b", local(small), "c")).choices[0].message.content == "hello"
    (prompt, _), (pictures,) = engine.asked[0], engine.pictures
    nine = images.text(images.seen(small))  # it is made larger first
    wanted = f"a{SIX}{after}b{nine}{after}c|"
    assert prompt == chat.text.tokenizer.encode(wanted)
    assert [p.tiles.shape for p in pictures] == [(7, 16, 16, 3), (10, 16, 16, 3)]
    places = np.concatenate([p.places.reshape(-1) for p in pictures])
    assert np.array_equal(places, np.flatnonzero(np.array(prompt) == images.token))


def test_texts_alone_reach_such_a_model() -> None:
    chat, engine = seeing(WITH_IMAGES)
    chat.chat(convert({"messages": [{"role": "user", "content": "hi"}]}, ChatRequest))
    assert engine.asked[0][0] == chat.text.tokenizer.encode("hi|") and engine.pictures == [[]]


@pytest.mark.parametrize(
    ("parts", "param", "said"),
    [
        (["a <image>", local(np.zeros((4, 4), np.uint8))], "[0]", "stands for an image"),
        (["a", local("nothing")], "[1].image", "no data: URL"),
        ([{"type": "image_url", "image_url": {"url": "data:,"}}], ".image_url.url", "base64"),
    ],
)
def test_requests_with_wrong_images_name_the_field(parts: list[Any], param: str, said: str) -> None:
    chat, engine = seeing(WITH_IMAGES)
    with pytest.raises(RequestError, match=said) as caught:
        chat.chat(asked(*parts))
    assert caught.value.param == f"messages[0].content{param}" and not engine.asked


def test_a_model_that_sees_nothing_refuses_images() -> None:
    with pytest.raises(RequestError, match="sees no images") as caught:
        fake_chat("hello").chat(asked("a", local(np.zeros((4, 4), np.uint8))))
    assert caught.value.param == "messages[0].content[1].image"


def test_a_template_that_leaves_images_out_is_an_error() -> None:
    chat, _ = seeing("{% for part in messages[0].content %}{{ part.text }}{% endfor %}")
    with pytest.raises(RequestError, match="0 of 1 images"):
        chat.chat(asked("a", local(np.zeros((4, 4), np.uint8))))


def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often files are decoded, and images are made what a model sees."""
    counts = {"decoded": 0, "seen": 0}
    decode, see = decoded, Images.seen

    def decode_one(data: bytes) -> Image.Image:
        counts["decoded"] += 1
        return decode(data)

    def see_one(images: Images, image: Image.Image) -> Any:
        counts["seen"] += 1
        return see(images, image)

    monkeypatch.setattr("edgerelax.chat.album.decoded", decode_one)
    monkeypatch.setattr(Images, "seen", see_one)
    return counts


def test_an_image_that_comes_again_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chat, engine = seeing(WITH_IMAGES)
    counts = counted(monkeypatch)
    image = Image.new("RGB", (40, 30), "red")
    (tmp_path / "image.png").write_bytes(base64.b64decode(png(image).partition(",")[2]))
    url = {"type": "image_url", "image_url": {"url": png(image)}}
    for parts in ([url], [url], [dict(url)], [local(tmp_path / "image.png"), "of what?"]):
        chat.chat(asked(*parts))
    assert counts == {"decoded": 1, "seen": 1}
    for given_image in (image, image.copy(), np.asarray(image)):
        chat.chat(asked(local(given_image)))
    assert counts == {"decoded": 1, "seen": 2}
    image.putpixel((0, 0), (0, 255, 0))
    chat.chat(asked(local(image)))
    chat.chat(asked(local(Image.frombytes("RGB", (30, 40), image.tobytes()))))
    assert counts["seen"] == 4
    tiles = [pictures[0].tiles for pictures in engine.pictures]
    assert all(found is tiles[0] for found in tiles[:4]) and tiles[7] is not tiles[4]


def test_images_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    chat, _ = seeing(WITH_IMAGES)
    images = chat.text.template.file.images
    assert images is not None
    one = images.seen(Image.new("RGB", (30, 30))).tiles.nbytes
    counts = counted(monkeypatch)
    album = Album(images, 2 * one)

    def see(*greys: int) -> int:
        request = album.request()
        for grey in greys:
            album.seen(Image.new("RGB", (30, 30), (grey,) * 3), request)
        return counts["seen"]

    assert see(1, 2, 3) == 3  # 3 finds no room
    assert see(1, 2, 3) == 4
    assert see(4) == 5  # 1 was used before 2 and goes
    assert see(2, 4) == 5
    assert see(1) == 6
    album.clear()
    assert see(1, 1) == 7
