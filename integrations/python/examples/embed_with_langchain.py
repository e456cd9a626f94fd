"""`Embeddings` of LangChain, and a search in its vector store."""

from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore

from candle_attention import SentenceTransformer

TEXTS = ["Stocks fell sharply today.", "A cat sleeps on the sofa."]


class CandleEmbeddings(Embeddings):
    """Queries and documents with the prompts that the model has for them."""

    def __init__(self, model: SentenceTransformer) -> None:
        self.model = model

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.model.encode_document(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.model.encode_query(text).tolist()


def main() -> None:
    store = InMemoryVectorStore(CandleEmbeddings(SentenceTransformer.embedded()))
    store.add_texts(TEXTS)
    for document, score in store.similarity_search_with_score("A kitten naps on the couch.", k=2):
        print(f"{score:.3f} {document.page_content}")


if __name__ == "__main__":
    main()
