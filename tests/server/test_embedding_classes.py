"""Embeddings in LangChain and LlamaIndex, by the classes of the page on embeddings."""

import asyncio
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode

from encoder_folders import bert_folder
from taper_frontend import export_encoder
from taper_runtime.text import Encoder

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "embeddings.md"

SENTENCES = ["hello world", "rain", "the world is round", "hello"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = bert_folder(
        tmp_path_factory.mktemp("bert"), [("Pooling", {"pooling_mode": "mean"}, {})]
    )
    found = folder / "encoder.taper"
    export_encoder(folder).save(found)
    return found


def of_page(name, directory):
    """The class with this name, from the code of the page."""
    blocks = re.findall(r"^```\w+\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    (block,) = (each for each in blocks if f"class {name}(" in each or f"class {name}:" in each)
    code = directory / f"{name}.py"
    code.write_text(block.partition("\n\n\nassert ")[0], encoding="utf-8")
    return runpy.run_path(str(code), {"Encoder": Encoder})[name]


def test_langchain(path, tmp_path):
    class Subclass(of_page("TaperEmbeddings", tmp_path), Embeddings):
        """As the page says."""

    own, encoder = Subclass(path), Encoder(path)
    np.testing.assert_allclose(own.embed_documents(SENTENCES), encoder.encode(SENTENCES), 1e-6)
    np.testing.assert_allclose(asyncio.run(own.aembed_query("rain")), encoder.encode("rain"), 1e-6)
    store = InMemoryVectorStore(own)
    store.add_documents([Document(page_content=each) for each in SENTENCES])
    (found,) = store.similarity_search("hello world", k=1)
    assert found.page_content == "hello world"


def test_llama_index(path, tmp_path):
    own, encoder = of_page("TaperEmbedding", tmp_path)(path), Encoder(path)
    for call in (own.get_text_embedding, own.get_query_embedding):
        np.testing.assert_allclose(call("rain"), encoder.encode("rain"), 1e-6)
    rows = own.get_text_embedding_batch(SENTENCES)
    np.testing.assert_allclose(rows, encoder.encode(SENTENCES), 1e-6)
    asked = asyncio.run(own.aget_query_embedding("hello"))
    np.testing.assert_allclose(asked, encoder.encode("hello"), 1e-6)
    index = VectorStoreIndex([TextNode(text=each) for each in SENTENCES], embed_model=own)
    (found,) = index.as_retriever(similarity_top_k=1).retrieve("hello world")
    assert found.node.get_content() == "hello world"
