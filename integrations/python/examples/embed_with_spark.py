"""Embeds a column with Spark: an iterator of Arrow arrays, so that each task loads the model once."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import arrow_udf
from pyspark.sql.types import ArrayType, FloatType

from candle_attention import SentenceTransformer

TEXTS = ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "Stocks fell sharply today."]


@arrow_udf(ArrayType(FloatType()))
def embed(texts: Iterator[pa.Array]) -> Iterator[pa.Array]:
    """Spark gives a worker `OMP_NUM_THREADS`, the number of threads that the model then uses."""
    model = SentenceTransformer.embedded()
    for batch in texts:
        yield pa.array(list(model.encode(batch, normalize_embeddings=True)), pa.list_(pa.float32()))


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    texts = spark.createDataFrame([(i, TEXTS[i % 3]) for i in range(300)], ["id", "text"]).repartition(4)
    rows = texts.withColumn("embedding", embed("text")).orderBy("id").collect()
    first, second, third = (row.embedding for row in rows[:3])
    print(len(rows), len(first))
    print(*(f"{sum(a * b for a, b in zip(first, other)):.3f}" for other in (second, third)))
    spark.stop()


if __name__ == "__main__":
    main()
