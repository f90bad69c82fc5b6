"""Ten small Django projects, each with two mistakes in one file, and the tests that find them."""

from __future__ import annotations

from dataclasses import dataclass

SETTINGS = """from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "tests"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
MIDDLEWARE = ["shop.middleware.Stamp"]
ROOT_URLCONF = "shop.urls"
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
USE_TZ = True
"""
MANAGE = """import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "conf.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
"""
MODELS = """from django.db import models


class ItemQuerySet(models.QuerySet):
    def cheap(self):
        return self.filter(price__lte=10)

    def total(self):
        return self.aggregate(total=models.Sum("price"))["total"] or 0


class Item(models.Model):
    name = models.CharField(max_length=40)
    price = models.IntegerField(default=0)
    slug = models.CharField(max_length=40, blank=True)

    objects = ItemQuerySet.as_manager()

    class Meta:
        ordering = ["name"]

    def __str__(self):
        return f"{self.name} ({self.price})"

    def discounted(self, percent):
        return self.price - self.price * percent // 100


class Log(models.Model):
    text = models.CharField(max_length=80)
"""
FIRST_MIGRATION = """from django.db import migrations, models
import shop.models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Item",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=40)),
                ("price", models.IntegerField(default=0)),
                ("slug", models.CharField(max_length=40, blank=True)),
            ],
            options={"ordering": ["name"]},
        ),
        migrations.CreateModel(
            name="Log",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("text", models.CharField(max_length=80)),
            ],
        ),
    ]
"""
SECOND_MIGRATION = """from django.db import migrations


def fill(apps, schema_editor):
    Item = apps.get_model("shop", "Item")
    for item in Item.objects.all():
        item.slug = item.name.lower().replace(" ", "-")
        item.save()


def clear(apps, schema_editor):
    apps.get_model("shop", "Item").objects.update(slug="")


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    operations = [migrations.RunPython(fill, clear)]
"""
VIEWS = """from django.http import JsonResponse
from django.shortcuts import get_object_or_404, render

from shop.models import Item


def items(request):
    found = Item.objects.filter(name__icontains=request.GET.get("q", ""))
    return render(request, "shop/items.html", {"items": found})


def item(request, pk):
    found = get_object_or_404(Item, pk=pk)
    return JsonResponse({"name": found.name, "price": found.price}, status=200)
"""
URLS = """from django.urls import path

from shop import views

urlpatterns = [
    path("items/", views.items, name="items"),
    path("items/<int:pk>/", views.item, name="item"),
]
"""
TEMPLATE = """{% load shop %}<ul>{% for item in items %}<li>{{ item.name }}: {{ item.price|money }}</li>
{% empty %}<li>nothing</li>{% endfor %}</ul>
"""
FILTERS = """from django import template

register = template.Library()


@register.filter
def money(cents):
    return f"{cents // 100}.{cents % 100:02d}"


@register.simple_tag
def times(text, count):
    return " ".join([text] * count)
"""
FORMS = """from django import forms

from shop.models import Item


class ItemForm(forms.ModelForm):
    class Meta:
        model = Item
        fields = ["name", "price"]

    def clean_price(self):
        price = self.cleaned_data["price"]
        if price < 0:
            raise forms.ValidationError("A price is not negative.")
        return price

    def clean_name(self):
        return self.cleaned_data["name"].strip().capitalize()
"""
MIDDLEWARE = """class Stamp:
    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        request.stamp = request.headers.get("X-Stamp", "none")
        response = self.get_response(request)
        response["X-Stamp"] = request.stamp
        return response
"""
SIGNALS = """from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver

from shop.models import Item, Log


@receiver(post_save, sender=Item)
def saved(sender, instance, created, **more):
    Log.objects.create(text=f"{'created' if created else 'changed'} {instance.name}")


@receiver(post_delete, sender=Item)
def deleted(sender, instance, **more):
    Log.objects.create(text=f"deleted {instance.name}")
"""
APPS = """from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "shop"

    def ready(self):
        from shop import signals  # noqa: F401
"""
COMMAND = """from django.core.management.base import BaseCommand, CommandError

from shop.models import Item


class Command(BaseCommand):
    def add_arguments(self, parser):
        parser.add_argument("percent", type=int)

    def handle(self, *args, percent, **options):
        if not 0 <= percent <= 100:
            raise CommandError("percent is from 0 to 100")
        for item in Item.objects.all():
            item.price = item.discounted(percent)
            item.save()
        self.stdout.write(f"changed {Item.objects.count()} items")
"""
MAILS = """from django.core.cache import cache
from django.core.mail import send_mail

from shop.models import Item


def total():
    return cache.get_or_set("total", Item.objects.total, 60)


def report(to):
    count = Item.objects.count()
    return send_mail(f"{count} items", f"Total: {total()}", "shop@localhost", [to])
"""
RIGHT = {
    "manage.py": MANAGE,
    "conf/__init__.py": "",
    "conf/settings.py": SETTINGS,
    "shop/__init__.py": "",
    "shop/apps.py": APPS,
    "shop/models.py": MODELS,
    "shop/migrations/__init__.py": "",
    "shop/migrations/0001_initial.py": FIRST_MIGRATION,
    "shop/migrations/0002_slugs.py": SECOND_MIGRATION,
    "shop/views.py": VIEWS,
    "shop/urls.py": URLS,
    "shop/templates/shop/items.html": TEMPLATE,
    "shop/templatetags/__init__.py": "",
    "shop/templatetags/shop.py": FILTERS,
    "shop/forms.py": FORMS,
    "shop/middleware.py": MIDDLEWARE,
    "shop/signals.py": SIGNALS,
    "shop/management/__init__.py": "",
    "shop/management/commands/__init__.py": "",
    "shop/management/commands/discount.py": COMMAND,
    "shop/mails.py": MAILS,
    "shop/tests/__init__.py": "",
    "shop/tests/test_old.py": "from django.test import SimpleTestCase\n",
}
HEAD = """import unittest
from io import StringIO

from django.core import mail
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.template import Context, Template
from django.test import RequestFactory, SimpleTestCase, TestCase, TransactionTestCase
from django.urls import reverse

from shop.forms import ItemForm
from shop.mails import report, total
from shop.middleware import Stamp
from shop.models import Item, Log


"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A file with two mistakes (right text -> wrong text), and test classes that find them."""

    name: str
    file: str
    mistakes: tuple[tuple[str, str], tuple[str, str]]
    tests: str

    def text(self, *fixed: int) -> str:
        """Return the file with those of its mistakes that are not fixed."""
        text = RIGHT[self.file]
        for number, (right, wrong) in enumerate(self.mistakes):
            assert text.count(right) == 1, (self.name, right)
            if number not in fixed:
                text = text.replace(right, wrong)
        return text


PROJECTS = (
    Project(
        name="models",
        file="shop/models.py",
        mistakes=(("percent // 100", "percent // 10"), ('f"{self.name} ({self.price})"', "self.name")),
        tests='''class ModelTests(TestCase):
    @classmethod
    def setUpTestData(cls):
        cls.item = Item.objects.create(name="Tea", price=200)

    def test_discount(self):
        """A discount is in percent."""
        self.assertEqual(self.item.discounted(25), 150)

    def test_text(self):
        self.assertEqual(str(self.item), "Tea (200)")

    def test_order(self):
        """
        Items come in the order of their names,
        whatever their prices are.
        """
        Item.objects.create(name="Ale", price=900)
        self.assertEqual([each.name for each in Item.objects.all()], ["Ale", "Tea"])

    @unittest.skip("there is no such field")
    def test_stock(self):
        self.fail()

    @unittest.expectedFailure
    def test_rounds_up(self):
        self.assertEqual(Item(price=1).discounted(50), 0)
''',
    ),
    Project(
        name="queries",
        file="shop/models.py",
        mistakes=(("price__lte=10", "price__lt=10"), ("or 0", "or None")),
        tests="""class QueryTests(TestCase):
    def test_cheap(self):
        for price in (5, 10, 11):
            Item.objects.create(name=str(price), price=price)
        self.assertQuerySetEqual(Item.objects.cheap(), ["10", "5"], transform=lambda each: each.name)

    def test_no_total(self):
        with self.assertNumQueries(1):
            self.assertEqual(Item.objects.total(), 0)

    def test_total(self):
        Item.objects.bulk_create([Item(name="a", price=3), Item(name="b", price=4)])
        self.assertEqual(Item.objects.total(), 7)

    if not hasattr(TestCase, "assertQuerySetEqual"):
        assertQuerySetEqual = TestCase.assertQuerysetEqual
""",
    ),
    Project(
        name="views",
        file="shop/views.py",
        mistakes=(("name__icontains", "name__iexact"), ('"price": found.price', '"price": 0')),
        tests="""class ViewTests(TestCase):
    def setUp(self):
        self.item = Item.objects.create(name="Tea", price=250)

    def test_search(self):
        response = self.client.get(reverse("items"), {"q": "tE"})
        self.assertContains(response, "Tea: 2.50", count=1)

    def test_json(self):
        response = self.client.get(reverse("item", args=[self.item.pk]))
        self.assertJSONEqual(response.content, {"name": "Tea", "price": 250})

    def test_missing(self):
        self.assertEqual(self.client.get("/items/9999/").status_code, 404)

    def test_template(self):
        self.assertTemplateUsed(self.client.get("/items/"), "shop/items.html")


class UrlTests(SimpleTestCase):
    def test_reverse(self):
        self.assertEqual(reverse("item", args=[3]), "/items/3/")
""",
    ),
    Project(
        name="forms",
        file="shop/forms.py",
        mistakes=(("price < 0", "price < -1"), (".strip().capitalize()", ".strip()")),
        tests="""class FormTests(TestCase):
    def test_negative(self):
        form = ItemForm({"name": "tea", "price": "-1"})
        self.assertFalse(form.is_valid())
        self.assertEqual(form.errors["price"], ["A price is not negative."])

    def test_name(self):
        form = ItemForm({"name": " tea ", "price": "1"})
        self.assertTrue(form.is_valid())
        self.assertEqual(form.save().name, "Tea")

    def test_missing(self):
        for field in ("name", "price"):
            with self.subTest(field=field):
                self.assertIn(field, ItemForm({}).errors)
""",
    ),
    Project(
        name="templates",
        file="shop/templatetags/shop.py",
        mistakes=(("% 100:02d", "% 100"), ("[text] * count", "[text, text]")),
        tests="""class TemplateTests(SimpleTestCase):
    def render(self, text, **context):
        return Template("{% load shop %}" + text).render(Context(context))

    def test_money(self):
        self.assertEqual(self.render("{{ price|money }}", price=205), "2.05")

    def test_times(self):
        self.assertHTMLEqual(self.render("<b>{% times 'ho' 3 %}</b>"), "<b>ho ho ho</b>")

    def test_dollars(self):
        self.assertEqual(self.render("{{ price|money }}", price=1234), "12.34")
""",
    ),
    Project(
        name="migrations",
        file="shop/migrations/0002_slugs.py",
        mistakes=(('.replace(" ", "-")', '.replace(" ", "")'), ('update(slug="")', "all()")),
        tests="""class MigrationTests(TransactionTestCase):
    def migrate(self, name):
        executor = MigrationExecutor(connection)
        executor.migrate([("shop", name)])
        return executor.loader.project_state([("shop", name)]).apps.get_model("shop", "Item")

    def tearDown(self):
        self.migrate("0002_slugs")

    def test_forwards(self):
        self.migrate("0001_initial").objects.create(name="Green Tea")
        self.assertEqual(self.migrate("0002_slugs").objects.get().slug, "green-tea")

    def test_backwards(self):
        \"\"\"Slugs are removed again.\"\"\"
        self.migrate("0002_slugs").objects.create(name="Tea", slug="tea")
        self.assertEqual(self.migrate("0001_initial").objects.get().slug, "")

    def test_one_word(self):
        self.migrate("0001_initial").objects.create(name="Tea")
        self.assertEqual(self.migrate("0002_slugs").objects.get().slug, "tea")
""",
    ),
    Project(
        name="signals",
        file="shop/signals.py",
        mistakes=(
            ("'created' if created else 'changed'", "'created'"),
            ("@receiver(post_delete, sender=Item)\n", ""),
        ),
        tests="""class SignalTests(TestCase):
    def texts(self):
        return list(Log.objects.values_list("text", flat=True))

    def test_changed(self):
        Item.objects.create(name="a").save()
        self.assertEqual(self.texts(), ["created a", "changed a"])

    def test_deleted(self):
        Item.objects.create(name="a").delete()
        self.assertIn("deleted a", self.texts())

    def test_created(self):
        Item.objects.create(name="b")
        self.assertEqual(self.texts(), ["created b"])
""",
    ),
    Project(
        name="commands",
        file="shop/management/commands/discount.py",
        mistakes=(("<= 100", "<= 1000"), ("            item.save()\n", "")),
        tests="""class CommandTests(TestCase):
    def test_refused(self):
        with self.assertRaisesMessage(CommandError, "percent is from 0 to 100"):
            call_command("discount", 101, stdout=StringIO())

    def test_saved(self):
        Item.objects.create(name="a", price=10)
        call_command("discount", 50, stdout=StringIO())
        self.assertEqual(Item.objects.get().price, 5)

    def test_output(self):
        out = StringIO()
        call_command("discount", 1, stdout=out)
        print("printed by a test")
        self.assertEqual(out.getvalue(), "changed 0 items\\n")
""",
    ),
    Project(
        name="middleware",
        file="shop/middleware.py",
        mistakes=(('"none"', '""'), ('response["X-Stamp"]', 'response["X-Other"]')),
        tests="""class MiddlewareTests(SimpleTestCase):
    def test_default(self):
        request = RequestFactory().get("/")
        Stamp(lambda request: {})(request)
        self.assertEqual(request.stamp, "none")

    def test_response(self):
        request = RequestFactory().get("/", HTTP_X_STAMP="7")
        self.assertEqual(Stamp(lambda request: {})(request), {"X-Stamp": "7"})

    def test_request(self):
        request = RequestFactory().get("/", HTTP_X_STAMP="8")
        Stamp(lambda request: {})(request)
        self.assertEqual(request.stamp, "8")
""",
    ),
    Project(
        name="mails",
        file="shop/mails.py",
        mistakes=(('f"{count} items"', '"items"'), ("total, 60)", "total, 0)")),
        tests="""class MailTests(TestCase):
    def setUp(self):
        cache.clear()

    def test_subject(self):
        Item.objects.create(name="a", price=3)
        self.assertEqual(report("me@localhost"), 1)
        self.assertEqual(mail.outbox[0].subject, "1 items")

    def test_cached(self):
        total()
        Item.objects.create(name="a", price=3)
        self.assertEqual(total(), 0)

    def test_body(self):
        report("me@localhost")
        self.assertEqual(mail.outbox[0].body, "Total: 0")
""",
    ),
)
