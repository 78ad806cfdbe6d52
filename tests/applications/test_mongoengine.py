"""mongoengine: documents with references, embedded documents, files, sequences and indexes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import mongoengine
import pytest
from mongoengine import fields

pytestmark = pytest.mark.long


class Author(mongoengine.Document):  # type: ignore[misc]
    name = fields.StringField(required=True, unique=True)


class Comment(mongoengine.EmbeddedDocument):  # type: ignore[misc]
    text = fields.StringField()
    by = fields.ReferenceField(Author)


class Post(mongoengine.Document):  # type: ignore[misc]
    title = fields.StringField()
    number = fields.SequenceField()
    author = fields.ReferenceField(Author, reverse_delete_rule=mongoengine.CASCADE)
    lazy = fields.LazyReferenceField(Author)
    anything = fields.GenericReferenceField()
    tags = fields.ListField(fields.StringField())
    comments = fields.ListField(fields.EmbeddedDocumentField(Comment))
    created = fields.DateTimeField(default=lambda: datetime.now(UTC))
    votes = fields.IntField(default=0)
    attachment = fields.FileField()
    meta = {  # noqa: RUF012
        "indexes": [
            "tags", ("author", "-created"), {"fields": ["created"], "expireAfterSeconds": 3600},
            {"fields": ["title"], "sparse": True},
        ],
        "ordering": ["-number"],
    }  # fmt: skip


@pytest.fixture
def authors(uri: str) -> Iterator[tuple[Any, Any]]:
    client = mongoengine.connect("blog", host=uri, uuidRepresentation="standard")
    yield Author(name="ann").save(), Author(name="bob").save()
    client.drop_database("blog")
    mongoengine.disconnect()


def test_references_of_each_kind_are_followed(authors: tuple[Any, Any]) -> None:
    ann, bob = authors
    Post(title="a", author=ann, lazy=bob, anything=bob, tags=["x", "y"], comments=[Comment(text="hi", by=bob)]).save()
    (post,) = Post.objects(tags="y", author=ann).select_related()
    assert post.comments[0].by.name == post.anything.name == post.lazy.fetch().name == "bob"
    assert Post.objects(comments__by=bob).count() == 1
    ann.delete()
    assert Post.objects.count() == 0


def test_unique_fields_files_and_sequences(authors: tuple[Any, Any]) -> None:
    with pytest.raises(mongoengine.NotUniqueError):
        Author(name="ann").save()
    posts = [Post(title=str(number)).save() for number in range(3)]
    assert [post.number for post in posts] == [1, 2, 3] and Post.objects.first().title == "2"
    posts[0].attachment.put(b"hello" * 100_000, content_type="text/plain")
    posts[0].save()
    stored = Post.objects.get(title="0").attachment
    assert stored.read() == b"hello" * 100_000 and stored.content_type == "text/plain"


def test_updates_aggregations_and_queries_through_indexes(authors: tuple[Any, Any]) -> None:
    ann, bob = authors
    for number in range(50):
        Post(title=f"post {number}", author=ann if number % 2 else bob, tags=[f"t{number % 5}"], votes=number).save()
    post = Post.objects.get(title="post 7")
    Post.objects(title="post 7").update_one(inc__votes=2, push__tags="z")
    post.reload()
    assert (post.votes, post.tags) == (9, ["t2", "z"])
    Post.objects(title="post 7").update_one(push__comments=Comment(text="hi"))
    Post.objects(title="post 7").update_one(set__comments__0__text="yo")
    assert Post.objects.get(comments__text="yo").title == "post 7"
    assert Post.objects(title__icontains="POST 1").count() == 11
    assert Post.objects.sum("votes") == sum(range(50)) + 2 and set(Post.objects.distinct("tags")) >= {"t0", "z"}
    pipeline: list[dict[str, Any]] = [
        {"$lookup": {"from": "author", "localField": "author", "foreignField": "_id", "as": "who"}},
        {"$unwind": "$who"},
        {"$group": {"_id": "$who.name", "count": {"$sum": 1}}},
    ]
    assert {item["_id"]: item["count"] for item in Post.objects.aggregate(pipeline)} == {"ann": 25, "bob": 25}
    assert Post.objects(title="new").modify(upsert=True, new=True, set__votes=9).votes == 9
    plan = Post.objects(tags="t3").order_by().explain()["queryPlanner"]["winningPlan"]
    assert plan["inputStage"]["indexName"] == "tags_1"
    assert Post.compare_indexes() == {"missing": [], "extra": []}
